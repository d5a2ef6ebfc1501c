// Decisions as people read them: what was measured, which rule spoke, what was done, what it did.

import { reading } from "./confirmation.js";
import { fill, h } from "./element.js";
import { moment, named, wholeMoment } from "./figures.js";

/** A list that opens each to be read; `choose` may do something else instead. */
export function decisionList({ empty, choose = (decision) => readDecision(decision) }) {
  const element = h("div", { class: "decisions" });
  let said = null;
  return {
    element,
    show(decisions) {
      const keys = decisions.map((decision) => decision.key + decision.effect + decision.outcome).join();
      if (keys === said) return;
      said = keys;
      // Whoever is in the list stays at the decision where they are.
      const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      fill(element, decisions.length ? h("ol", {}, decisions.map((decision) => h("li", {}, line(decision, choose)))) : h("p", { class: "soft" }, empty));
      if (focused) [...element.querySelectorAll("button")].find((button) => button.dataset.key === focused)?.focus();
    },
  };
}

function line(decision, choose) {
  return h("button", { type: "button", class: "decision", "data-key": decision.key, "data-carried-out": String(decision.carried_out), onclick: () => choose(decision) },
    h("time", { datetime: new Date(decision.at * 1000).toISOString() }, moment(decision.at)),
    h("span", { class: "headline" }, decision.headline || decision.rule),
    h("span", { class: "soft small" }, decision.by ? "by " + decision.by : decision.loop));
}

/** All that is known of one, in a dialog; from there to those before and after it, if they are given. */
export function readDecision(decision, { older = null, newer = null, read = readDecision } = {}) {
  const step = (words, other) => h("button", { type: "button", disabled: !other, onclick: () => { dialog.close(); read(other); } }, words);
  const dialog = reading(decision.headline || decision.rule,
    h("p", { class: "soft" }, wholeMoment(decision.at), " · ", decision.by ? `by ${decision.by}` : `loop ${decision.loop}`,
      decision.law ? ` · law ${decision.law}` : ""),
    h("dl", { class: "explained" },
      entry("Measured", figures(decision.measured)),
      entry("Rule", decision.rule),
      entry("Gave", figures(decision.outputs)),
      entry("Because", decision.reason),
      entry(decision.carried_out ? "Action" : "Wanted, not done", decision.actions.length ? decision.actions.join("; ") : "nothing to do"),
      entry("Outcome", decision.outcome),
      entry("Effect", decision.effect === null ? "It is too early to say." : decision.effect || "The console was not watching then."),
      entry("Otherwise", decision.otherwise)));
  if (older || newer) dialog.querySelector(".actions").prepend(step("← Older", older), step("Newer →", newer));
  return dialog;
}

function entry(name, content) {
  if (content === "" || content === null) return null;
  return [h("dt", {}, name), h("dd", {}, content)];
}

function figures(pairs) {
  if (!pairs.length) return null;
  return h("ul", { class: "measured" }, pairs.map(([name, value]) =>
    h("li", {}, h("span", { class: "soft" }, name.replaceAll("_", " ").replace(/ s$/, "").replace(/ per$/, "")), " ", h("b", {}, named(name, value)))));
}
