// A short table: headers, rows, nothing clever.

import { h } from "./element.js";

/** columns: [title, row → text or node, class]. */
export function plainTable(caption, columns, rows, empty = "Nothing here.") {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  // Wide tables scroll by themselves, by keyboard too.
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, , name]) => h("th", { scope: "col", class: name }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, of, name], number) => {
        const content = of(row);
        return number === 0 ? h("th", { scope: "row", class: name }, content) : h("td", { class: name }, content);
      }))))));
}
