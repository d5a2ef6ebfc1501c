// What the wheel of a queue and that of an HTTP service have in common: lines with buttons, and what is greyed
// out with the reason why.

import { fill, h } from "./element.js";

export class WheelCard {
  #who;
  #changed;
  #said = "";
  // Whether anything that is shown now is greyed out.
  #isDenied = false;
  view = null;
  element = h("section", { class: "card wheel", "aria-labelledby": "wheel" });

  /** changed(): something was done, look again. */
  constructor({ who, changed }) {
    this.#who = who;
    this.#changed = changed;
  }

  /** Before the question is closed: what is asked next is about what is there now. */
  async lookAgain() {
    // It was done all the same; the next look tells what is wrong.
    try { await this.#changed(); } catch { /* as above */ }
  }

  get name() { return this.view.row.name; }

  /** What decides about what is shown (`facts`); `lines()` is asked for when that is another. */
  show(view) {
    this.view = view;
    const said = JSON.stringify([view.allowed, ...this.facts(view)]);
    if (said === this.#said) return;
    this.#said = said;
    this.#isDenied = false;
    const wasHere = this.element.contains(document.activeElement);
    fill(this.element, h("h2", { id: "wheel" }, "The wheel"), [...this.lines(), this.#reason()]);
    // What was pressed may be gone with what it was for.
    if (wasHere) this.element.querySelector("button:enabled")?.focus();
  }

  may(right) { return this.view.allowed.includes(right); }

  button(right, words, act, options = {}) {
    const may = this.may(right);
    this.#isDenied ||= !may;
    return h("button", { type: "button", disabled: !may, title: may ? null : this.#why(), ...options, onclick: act }, words);
  }

  line(name, state, ...buttons) {
    return h("div", { class: "loop" }, h("h3", {}, name), h("p", {}, state), h("div", { class: "actions" }, buttons));
  }

  #why() {
    return this.#who.read_only ? "You may only look." : `Your roles on ${this.name} do not allow this.`;
  }

  #reason() {
    if (!this.#isDenied) return null;
    return h("p", { class: "soft small" }, this.#who.read_only
      ? "You may only look: whoever has the roles configure or admin may take the wheel."
      : `Greyed out: your roles on ${this.name} do not allow it.`);
  }
}
