// Taking the wheel, and giving it back: what a person may set of a queue, each with a question that says
// what will happen. What is not allowed is shown greyed out, with the reason.

import { LONG_PATIENCE_MS, ask, segment } from "./api.js";
import { confirmation, field } from "./confirmation.js";
import { h } from "./element.js";
import { count, part, plural } from "./figures.js";
import { tell } from "./toast.js";
import { WheelCard } from "./wheel_card.js";

const SHARES_MAX = 24;

export class Wheel extends WheelCard {
  facts({ row, ...view }) {
    return [row.paused, row.steering, row.replicas_wanted, view.replicas_min, view.replicas_max, view.policy, view.prefetch_goal,
      view.shares_by_hand, view.consumers.length, this.#modes(), this.#sharing().length];
  }

  lines() { return [this.#scaling(), this.#prefetch(), this.#shares(), this.#queue()]; }

  // How it scales now: who changes it has seen that, or is told.
  get #seen() { return this.view.scaling_mark || null; }
  get #prefetchSeen() { return this.view.prefetch_mark || null; }
  get #path() { return `/queues/${segment(this.name)}`; }
  #modes() { return [...new Set(this.view.consumers.map((consumer) => consumer.mode).filter(Boolean))].sort(); }
  // The replicas that have a share. A replica has none for a moment after somebody gave the shares back.
  #sharing() {
    const replicas = this.view.points.findLast((point) => point.replicas.length)?.replicas ?? [];
    return replicas.filter((replica) => replica.share !== null);
  }

  #scaling() {
    const { row, replicas_min: least, replicas_max: most, policy } = this.view;
    if (least === null) return this.line("Replicas", "This queue has one replica and does not scale.");
    const words = { auto: "automatic", "recommend-only": "recommends only", manual: "manual" }[row.steering] ?? row.steering;
    return this.line("Replicas", h("span", {}, h("b", { "data-loop": "replicas" }, words), `, ${count(row.replicas_wanted)} wanted of ${least} to ${most}`,
      policy ? `, policy ${policy}` : ""),
    this.button("scaling", "Set by hand", () => this.#holdReplicas()),
    row.steering === "auto" ? null : this.button("scaling", "Give back", () => this.#steer("auto",
      `The law decides about the replicas of ${this.name} again, from its next look on.`, "Give back")),
    row.steering === "recommend-only" ? null : this.button("scaling", "Recommend only", () => this.#steer("recommend-only",
      `Decisions about ${this.name} are made and explained, and not carried out: it stays at ${plural(row.replicas, "replica")}.`, "Recommend only")));
  }

  #holdReplicas() {
    const { replicas_min: least, replicas_max: most, row } = this.view;
    const seen = this.#seen;
    const input = h("input", { type: "number", min: least, max: most, value: String(row.replicas_wanted), required: true });
    confirmation({
      title: `Replicas of ${this.name}`, button: "Take over",
      will: ["The number that you say is held until somebody gives it back; the law no longer decides.",
        "Fewer: replicas are drained first, no message is lost. More: machines may be started."],
      fields: [field("Replicas", input, `${least} to ${most}`)],
      act: () => this.#do("PUT", "/steering", { mode: "manual", replicas: Number(input.value), seen }, `${this.name} is held at ${plural(Number(input.value), "replica")}.`),
    });
  }

  #steer(mode, will, button) {
    const seen = this.#seen;
    confirmation({ title: `Replicas of ${this.name}`, will, button,
      act: () => this.#do("PUT", "/steering", { mode, replicas: null, seen }, `Replicas of ${this.name}: ${mode}.`) });
  }

  #prefetch() {
    const { prefetch_goal: goal, consumers } = this.view;
    const modes = this.#modes();
    const isManual = modes.includes("manual") || / by hand$/.test(goal);
    const words = isManual ? "manual" : modes.length ? modes.join(", ") : goal ? "automatic" : "not steered";
    return this.line("Prefetch", h("span", {}, h("b", { "data-loop": "prefetch" }, words), goal ? `, goal: ${goal}` : "", `, ${plural(consumers.length, "consumer")}`),
      this.button("prefetch", "Set by hand", () => this.#holdPrefetch()),
      isManual ? this.button("prefetch", "Give back", () => confirmation({
        title: `Prefetch of ${this.name}`, button: "Give back",
        will: "It is as it was before it was taken over: the loop steers it to its goal, or each consumer has what it asked for.",
        act: () => this.#do("DELETE", "/prefetch", undefined, `The prefetch of ${this.name} is given back.`),
      })) : null,
      this.button(this.may("goal") ? "goal" : "scaling", "Goal", () => this.#setGoal()));
  }

  #holdPrefetch() {
    const { consumers, prefetch_goal: goal } = this.view;
    const seen = this.#prefetchSeen;
    const input = h("input", { type: "number", min: 1, max: 65535, value: String(consumers[0]?.prefetch ?? 10), required: true });
    // Where a goal is set the node refuses: a loop would undo it.
    const ones = goal || !this.may("prefetch-of-one") ? [] : consumers;
    const whom = h("select", {}, h("option", { value: "" }, "all consumers"),
      ones.slice(0, 500).map((consumer) => h("option", { value: `${consumer.client_id}/${consumer.consumer}` },
        `${consumer.client || "client " + consumer.client_id}, consumer ${consumer.consumer}, has ${consumer.prefetch}`)));
    confirmation({
      title: `Prefetch of ${this.name}`, button: "Take over",
      will: ["All consumers: each has so many messages at hand, until somebody gives it back; the loop no longer changes it.",
        ...ones.length ? ["One of them: it has so many until it subscribes anew or somebody sets another. Nobody can give that back."] : []],
      fields: [h("div", { class: "row" }, field("Messages", input), field("Of", whom))],
      act: () => {
        const [client_id, consumer] = whom.value.split("/").map(Number);
        return this.#do("PUT", "/prefetch", { messages: Number(input.value), ...whom.value ? { client_id, consumer } : { seen } },
          `The prefetch of ${this.name} is ${input.value}, by hand.`);
      },
    });
  }

  #setGoal() {
    const seen = this.#prefetchSeen;
    const input = h("input", { list: "goals", required: true, autocomplete: "off", value: "keep-up" });
    confirmation({
      title: `Goal of the prefetch of ${this.name}`, button: "Set the goal",
      will: "The loop steers the prefetch of all consumers towards this goal from now on.",
      fields: [field("Goal", input, "keep-up, a rate such as 400/s, or off"),
        h("datalist", { id: "goals" }, ["keep-up", "400/s", "off"].map((value) => h("option", { value })))],
      act: () => this.#do("PUT", "/prefetch-goal", { goal: input.value.trim(), seen }, `The goal is ${input.value.trim()}.`),
    });
  }

  #shares() {
    const replicas = this.#sharing();
    if (replicas.length < 2) return null;
    const right = this.may("shares") ? "shares" : "prefetch";
    if (replicas.length > SHARES_MAX) return this.line("Shares", `Of ${count(replicas.length)} replicas: too many to set by hand.`);
    const isManual = this.view.shares_by_hand;
    return this.line("Shares", h("span", {}, h("b", { "data-loop": "shares" }, isManual ? "manual" : "automatic"), ", how arrivals are shared out among replicas"),
      this.button(right, "Set by hand", () => this.#holdShares()),
      isManual ? this.button(right, "Give back", () => confirmation({
        title: `Shares of ${this.name}`, button: "Give back", will: "The law shares arrivals out again, by what each replica can do.",
        act: () => this.#do("DELETE", "/shares", undefined, `The shares of ${this.name} are automatic again.`),
      })) : null);
  }

  #holdShares() {
    const seen = this.#seen;
    const replicas = this.#sharing();
    const inputs = replicas.map((replica) => h("input", { type: "number", min: 0, max: 100, step: "any", required: true, value: (replica.share * 100).toFixed(1) }));
    confirmation({
      title: `Shares of ${this.name}`, button: "Take over",
      will: "New messages go to replicas by these parts until somebody gives it back. They are made to sum up to 100 %.",
      fields: [h("div", { class: "row" }, replicas.map((replica, number) => field(`Replica ${replica.number}, in %`, inputs[number], `now ${part(replica.share)}`)))],
      act: () => {
        const sum = inputs.reduce((total, input) => total + Number(input.value), 0);
        if (!(sum > 0)) throw new Error("At least one share must be above 0.");
        const shares = Object.fromEntries(replicas.map((replica, number) => [replica.number, Number(inputs[number].value) / sum]));
        return this.#do("PUT", "/shares", { shares, seen }, `The shares of ${this.name} are set by hand.`);
      },
    });
  }

  #queue() {
    const { row } = this.view;
    return this.line("Queue", row.paused ? "Paused: nothing is delivered." : "Delivers.",
      row.paused
        ? this.button("pause", "Resume", () => confirmation({ title: `Resume ${this.name}`, button: "Resume",
          will: `${plural(this.view.row.waiting, "message")} that wait are delivered again at once.`, act: () => this.#do("POST", "/resume", undefined, `${this.name} delivers again.`) }))
        : this.button("pause", "Pause", () => confirmation({ title: `Pause ${this.name}`, button: "Pause",
          will: "Nothing more is delivered until it is resumed. Producers go on; messages gather, and an agreement may be breached.",
          act: () => this.#do("POST", "/pause", undefined, `${this.name} is paused.`) })),
      this.button("purge", "Purge", () => confirmation({ title: `Purge ${this.name}`, button: "Purge", danger: true, typed: this.name,
        will: `${plural(this.view.row.waiting, "message")} that wait are destroyed. This cannot be undone. What consumers hold stays theirs.`,
        act: () => this.#do("POST", "/purge", undefined, `${this.name} is empty.`, LONG_PATIENCE_MS) }), { class: "danger" }),
      this.button("delete", "Delete", () => confirmation({ title: `Delete ${this.name}`, button: "Delete", danger: true, typed: this.name,
        will: `The queue, its ${plural(this.view.row.waiting, "message")} and its ${plural(row.replicas, "replica")} are destroyed. This cannot be undone; producers and consumers are refused.`,
        act: async () => {
          await ask("DELETE", this.#path, undefined, LONG_PATIENCE_MS);
          location.hash = "#/";
          return `${this.name} is deleted.`;
        } }), { class: "danger" }));
  }

  async #do(method, path, body, done, patience_ms = undefined) {
    await ask(method, this.#path + path, body, patience_ms);
    tell(done);
    await this.lookAgain();
    return null;
  }
}
