// Who did what, and when: everything that was done by this console or its API.

import { ask } from "../api.js";
import { fill, h } from "../element.js";
import { moment, wholeMoment } from "../figures.js";
import { plainTable } from "../plain_table.js";
import { every } from "../polling.js";

export async function open({ signal }) {
  const place = h("div");
  let before = "";
  const show = (deeds) => {
    const said = JSON.stringify(deeds);
    if (said === before) return;
    before = said;
    fill(place, plainTable("Deeds, newest first", [
      ["When", (deed) => h("span", { title: wholeMoment(deed.at) }, moment(deed.at)), "when"], ["Who", (deed) => deed.user || "nobody logged in"],
      ["What", (deed) => deed.what], ["Service", (deed) => deed.service], ["Outcome", (deed) => deed.outcome],
    ], deeds, "Nobody has done anything here yet."));
  };
  await every(2_000, signal, async () => show(await ask("GET", "/deeds")));
  return {
    title: "Deeds",
    element: h("div", { class: "page" }, h("h1", {}, "Deeds"),
      h("p", { class: "soft" }, "What people have done by this console and its API, newest first. What the loops decide stands with each service."), place),
  };
}
