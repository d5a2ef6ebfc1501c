// A traffic light: a shape and a word, and a colour for those who see it.

import { h, mark, say } from "./element.js";

/** Those that need somebody come first. */
export const LIGHTS = ["breached", "warned", "unknown", "met", "none"];

const WORDS = { breached: "breached", warned: "warned", unknown: "unknown", met: "met", none: "no promise" };

export function light(name) {
  const element = h("span", { class: "light" });
  showLight(element, name);
  return element;
}

export function showLight(element, name) {
  mark(element, "data-light", name);
  say(element, WORDS[name] ?? name);
}

/** What is left of an error budget, as a bar with its figure. */
export function budgetBar() {
  const bar = h("span", { class: "bar-fill" });
  const text = h("span", { class: "bar-text" });
  const element = h("span", { class: "bar" }, h("span", { class: "bar-track", "aria-hidden": "true" }, bar), text);
  let before;
  return {
    element,
    show(left, words) {
      if (before === left) return;
      before = left;
      element.classList.toggle("empty", left === null || left === undefined);
      bar.style.width = `${Math.max(0, Math.min(1, left ?? 0)) * 100}%`;
      mark(bar, "data-level", left > 0.5 ? "met" : left > 0.1 ? "warned" : "breached");
      say(text, words);
    },
  };
}
