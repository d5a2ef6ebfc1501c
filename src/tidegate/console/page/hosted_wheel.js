// Taking the wheel of an HTTP service, and giving it back: how many instances, between which bounds, how many
// requests each has and how many are let in. What was seen is sent along, so that nobody undoes unseen what
// somebody else has said meanwhile.

import { ask, segment } from "./api.js";
import { confirmation, field } from "./confirmation.js";
import { h } from "./element.js";
import { count, plural } from "./figures.js";
import { tell } from "./toast.js";
import { WheelCard } from "./wheel_card.js";

const INSTANCES_MAX = 10_000;
const REQUESTS_MAX = 100_000;

export class HostedWheel extends WheelCard {
  facts({ row, hosted, replicas_min, replicas_max }) {
    return [row.replicas_wanted, hosted, replicas_min, replicas_max];
  }

  lines() {
    if (!this.view.hosted) return [h("p", { class: "soft" }, "It is hosted no more.")];
    return [this.#instances(), this.#bounds(), this.#concurrency(), this.#admission()];
  }

  get #said() { return this.view.hosted.by_hand; }

  #instances() {
    const { row, replicas_min: least, replicas_max: most } = this.view;
    const held = this.#said.instances;
    return this.line("Instances", h("span", {}, h("b", { "data-loop": "instances" }, held ? "manual" : "automatic"),
      `, ${count(row.replicas_wanted)} wanted of ${least} to ${most === INSTANCES_MAX ? "any number" : most}`),
    this.button("by-hand", "Set by hand", () => {
      const input = number(row.replicas_wanted || least, least, most);
      this.#ask("Instances", {
        button: "Take over",
        will: ["As many as you say serve until somebody gives it back; the law no longer decides.",
          "Fewer: instances answer what they have first. More: machines may be started."],
        fields: [field("Instances", input, `${least} to ${most}`)],
        change: () => ({ instances: Number(input.value) }),
        done: () => `${this.name} is held at ${plural(Number(input.value), "instance")}.`,
      });
    }),
    held ? this.#back("Instances", { instances: null }, "The law decides how many instances there are again, from what runs now.") : null);
  }

  #bounds() {
    const { hosted, replicas_min: least, replicas_max: most } = this.view;
    const isSaid = this.#said.least || this.#said.most;
    const agreed = `${hosted.agreed_min} to ${hosted.agreed_max ?? "any number"}`;
    return this.line("Bounds", h("span", {}, h("b", { "data-loop": "bounds" }, isSaid ? "manual" : "as agreed"),
      isSaid ? `, ${least} to ${most}; agreed: ${agreed}` : `, ${agreed}`),
    this.button("by-hand", "Set by hand", () => {
      const low = number(least, 1, INSTANCES_MAX), high = number(most, 1, INSTANCES_MAX);
      this.#ask("Bounds", {
        button: "Take over",
        will: "The law stays between these, and no longer between what is agreed, until somebody gives it back.",
        fields: [h("div", { class: "row" }, field("At least", low), field("At most", high))],
        change: () => ({ least: Number(low.value), most: Number(high.value) }),
        done: () => `${this.name} has ${low.value} to ${high.value} instances.`,
      });
    }),
    isSaid ? this.#back("Bounds", { least: null, most: null }, `There are ${agreed} instances again, as is agreed.`) : null);
  }

  #concurrency() {
    const { hosted } = this.view, held = this.#said.concurrency;
    return this.line("Requests of an instance", h("span", {}, h("b", { "data-loop": "concurrency" }, held ? "manual" : "automatic"),
      held ? `, ${count(held)} at a time` : `, at most ${count(hosted.concurrency)} at a time`),
    this.button("by-hand", "Set by hand", () => {
      const input = number(held ?? hosted.concurrency, 1, REQUESTS_MAX);
      this.#ask("Requests of an instance", {
        button: "Take over",
        will: "No instance has more requests at a time than this; others wait in the door. Nothing adapts it until somebody gives it back.",
        fields: [field("Requests at a time", input, `deployed with ${hosted.concurrency}`)],
        change: () => ({ concurrency: Number(input.value) }),
        done: () => `Each instance of ${this.name} has ${plural(Number(input.value), "request")} at a time.`,
      });
    }),
    held ? this.#back("Requests of an instance", { concurrency: null }, `They are adapted again, up to ${hosted.concurrency} at a time.`) : null);
  }

  #admission() {
    const held = this.#said.in_flight_max;
    return this.line("Requests let in", h("span", {}, h("b", { "data-loop": "admission" }, held ? "manual" : "automatic"),
      held ? `, ${count(held)} at a time, others are refused` : ", all of them unless too few instances can be had"),
    this.button("by-hand", "Set by hand", () => {
      const input = number(held ?? 100, 1, REQUESTS_MAX);
      this.#ask("Requests let in", {
        button: "Take over",
        will: "All doors together have no more requests in hand than this: others are refused with 503 at once, and the agreement may be breached.",
        fields: [field("Requests at a time", input)],
        change: () => ({ in_flight_max: Number(input.value) }),
        done: () => `${this.name} lets in ${plural(Number(input.value), "request")} at a time.`,
      });
    }),
    held ? this.#back("Requests let in", { in_flight_max: null }, "All are let in again, unless the agreement calls for a bound.") : null);
  }

  #back(what, change, will) {
    return this.button("by-hand", "Give back", () => this.#ask(what, {
      button: "Give back", will, change: () => change, done: () => `${what} of ${this.name}: given back.`,
    }));
  }

  #ask(what, { change, done, ...question }) {
    const seen = this.#said;
    confirmation({
      title: `${what} of ${this.name}`, ...question,
      act: async () => {
        await ask("PUT", `/services/http/${segment(this.name)}/by-hand`, { ...seen, ...change(), seen });
        tell(done());
        await this.lookAgain();
        return null;
      },
    });
  }
}

function number(value, min, max) {
  return h("input", { type: "number", min, max, value: String(value), required: true });
}
