// Pages that `tidegate lab`, `learn` and `report` have written, each in a frame that may do nothing.

import { ask } from "../api.js";
import { fill, h } from "../element.js";
import { bytes, wholeMoment } from "../figures.js";

export async function open({ words }) {
  const results = await ask("GET", "/results");
  const frame = h("div", { class: "result" });
  const links = new Map(results.map((result) => [result.path, h("a", { href: "#/experiments/" + encodeURIComponent(result.path) },
    h("strong", {}, result.title || result.name), h("span", { class: "soft small" }, `${result.name} · ${wholeMoment(result.at)} · ${bytes(result.size_bytes)}`))]));
  const show = (path) => {
    const chosen = results.find((result) => result.path === path) ?? results[0];
    if (!chosen) return;
    for (const [of, link] of links) {
      if (of === chosen.path) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const source = "/api/results/" + chosen.path.split("/").map(encodeURIComponent).join("/");
    // What may run nothing may not run a viewer of PDFs either.
    if (chosen.path.endsWith(".pdf")) {
      fill(frame, h("p", {}, h("a", { class: "button", href: source, download: chosen.path.split("/").at(-1) }, "Download ", chosen.name)));
      return;
    }
    fill(frame, h("p", {}, h("a", { href: source, target: "_blank", rel: "noopener" }, "Open by itself")),
      h("iframe", { sandbox: "", src: source, title: chosen.title || chosen.name, loading: "lazy", referrerpolicy: "no-referrer" }));
  };
  show(words[0]);
  return {
    title: "Experiments",
    element: h("div", { class: "page experiments" }, h("h1", {}, "Experiments and reports"),
      results.length
        ? h("div", { class: "beside" }, h("nav", { "aria-label": "Results" }, h("ul", {}, [...links.values()].map((link) => h("li", {}, link)))), frame)
        : h("p", { class: "soft" }, "No results were found. ", h("code", {}, "tidegate lab run"), " and ", h("code", {}, "tidegate report"),
          " write pages; those in the folder of results appear here.")),
    follow: ({ words: now }) => { show(now[0]); return true; },
  };
}
