// What was learned: from which data, how well it fits, the curve over the points, and whether it is used.

import { ask } from "../api.js";
import { curveChart } from "../curve_chart.js";
import { h, say } from "../element.js";
import { count, figure, plural, wholeMoment } from "../figures.js";

export async function open({ words, signal }) {
  const models = await ask("GET", "/models");
  models.sort((one, other) => other.learned_at - one.learned_at);
  const filter = h("input", { type: "search", placeholder: "Filter by subject or kind", "aria-label": "Filter", value: words[0] ?? "" });
  const accepted = models.filter((model) => model.accepted).length;
  const found = h("span", { class: "soft", role: "status" });
  const cards = models.map((model) => ({ element: card(model, signal), text: `${model.subject} ${model.kind}`.toLowerCase() }));
  const show = () => {
    const wanted = filter.value.trim().toLowerCase();
    let number = 0;
    for (const one of cards) {
      one.element.hidden = !one.text.includes(wanted);
      number += one.element.hidden ? 0 : 1;
    }
    say(found, wanted ? `${number} of ${models.length}` : "");
  };
  filter.addEventListener("input", show);
  show();
  return {
    title: "Models",
    element: h("div", { class: "page models" }, h("h1", {}, "Models"),
      models.length
        ? [h("p", { class: "soft" }, `${plural(models.length, "model")}, ${accepted} accepted. What is not accepted is not used, and says why.`),
          h("div", { class: "tools" }, filter, found), h("div", { class: "cards" }, cards.map((one) => one.element))]
        : h("p", { class: "soft" }, "Nothing was learned yet. ", h("code", {}, "tidegate learn"), " learns from what nodes have recorded.")),
  };
}

function card(model, signal) {
  const chart = model.points.length || model.curve.length
    ? curveChart({ title: `${model.kind} of ${model.subject}`, points: model.points, curve: model.curve, x: model.x, y: model.y, signal })
    : h("p", { class: "soft small" }, "The points were not kept.");
  return h("article", { class: "card model" },
    h("header", {}, h("h2", {}, model.subject, " ", h("span", { class: "soft" }, `${model.kind}, version ${model.version}`)),
      h("span", { class: "light", "data-light": model.accepted ? "met" : "warned" }, model.accepted ? "accepted" : "refused")),
    h("p", {}, model.reason || (model.accepted ? "It fits." : "No reason was given.")),
    chart,
    h("div", { class: "pair" }, figuresOf("How well it fits", model.quality), figuresOf("What it says", model.parameters)),
    h("p", { class: "soft small" }, `From ${plural(model.rows, "row")}`,
      model.since !== null ? `, ${wholeMoment(model.since)} to ${wholeMoment(model.until)}` : "", `; learned ${wholeMoment(model.learned_at)}.`));
}

function figuresOf(title, values) {
  const names = Object.keys(values);
  if (!names.length) return null;
  return h("section", {}, h("h3", {}, title), h("dl", { class: "figures" },
    names.map((name) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, Number.isInteger(values[name]) ? count(values[name]) : figure(values[name]))])));
}
