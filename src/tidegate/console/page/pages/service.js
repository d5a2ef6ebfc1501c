// One service: where its agreement stands, live charts with the decisions on them, and the wheel.

import { messagesAddress, modelsAddress, serviceAddress } from "../address.js";
import { ask, segment } from "../api.js";
import { ServiceCharts } from "../charts_of_service.js";
import { decisionList, readDecision } from "../decisions.js";
import { fill, h, say } from "../element.js";
import { count, duration, figure, inUnit, moment, part, rate } from "../figures.js";
import { HostedWheel } from "../hosted_wheel.js";
import { budgetBar, light, showLight } from "../light.js";
import { plainTable } from "../plain_table.js";
import { every } from "../polling.js";
import { Wheel } from "../wheel.js";

const KEPT_S = 900;
const SET_BACK_S = 5;
const DECISIONS_MAX = 200;
const WINDOWS_S = [120, 300, 900];
const ROWS_MAX = 100;
// Looks in a row that do not show it: one may be of before it came.
const MISSED_MIN = 2;

export function watched({ words: [kind, name] }) { return `${kind}/${name}`; }

export async function open({ words: [kind, name], parameters, live, who, signal }) {
  const path = `/services/${segment(kind)}/${segment(name)}`;
  const page = new ServicePage(await ask("GET", path), { who, signal, lookAgain: () => page.lookAgain() });
  let asked = 0;
  page.lookAgain = async () => {
    const number = asked += 1;
    const view = await ask("GET", path + "?points=false");
    // What was asked before something was changed may come after it.
    if (number === asked) page.take(view);
  };
  live.addEventListener("point", (event) => page.add(event.detail), { signal });
  live.addEventListener("decision", (event) => page.decided(event.detail), { signal });
  live.addEventListener("overview", (event) => {
    const row = event.detail.services.find((each) => each.kind === kind && each.name === name);
    if (row) page.showRow(row);
    else page.miss();
  }, { signal });
  await every(2_000, signal, () => page.lookAgain());
  const recover = async () => page.begin(await ask("GET", path));
  const readNamed = (wanted) => {
    const decision = page.decisions.find((each) => each.key === wanted);
    if (decision) page.read(decision);
  };
  return {
    title: name,
    element: page.element,
    recover,
    shown: () => { page.draw(); readNamed(parameters.get("decision")); },
    follow: ({ words, parameters: now }) => {
      if (words[0] !== kind || words[1] !== name) return false;
      readNamed(now.get("decision"));
      return true;
    },
  };
}

class ServicePage {
  #view;
  #points;
  #window_s = 300;
  #charts;
  #wheel;
  #list;
  #light = light("none");
  #facts = h("dl", { class: "tiles" });
  #badges = h("span", { class: "badges" });
  #agreement = h("section", { class: "card agreement", "aria-labelledby": "agreement" });
  #consumers = h("div");
  #replicas = h("div");
  #said = {};
  #noMore = h("div", { role: "status" });
  #missed = 0;
  #signal;
  decisions;
  element;

  constructor(view, { who, signal, lookAgain }) {
    const { kind, name } = view.row;
    this.#points = view.points;
    this.#signal = signal;
    this.decisions = view.decisions;
    this.#charts = new ServiceCharts({ kind, onMark: (decision) => this.read(decision), signal });
    this.#wheel = new (kind === "http" ? HostedWheel : Wheel)({ who, changed: lookAgain });
    this.#list = decisionList({ empty: "Nothing was decided about this service yet.", choose: (decision) => this.read(decision) });
    const windows = WINDOWS_S.map((window_s) => h("button", {
      type: "button", "aria-pressed": String(window_s === this.#window_s),
      onclick: (event) => {
        this.#window_s = window_s;
        for (const button of windows) button.setAttribute("aria-pressed", String(button === event.currentTarget));
        this.draw();
      },
    }, `${window_s / 60} min`));
    this.element = h("div", { class: "page service" },
      h("div", { class: "title" }, h("h1", {}, name), this.#light, this.#badges,
        h("span", { class: "links" },
          kind === "queue" ? h("a", { href: messagesAddress(name) }, "Messages") : null, h("a", { href: modelsAddress(name) }, "Models"))),
      this.#noMore, this.#facts,
      h("div", { class: "tools" }, h("div", { class: "segments", role: "group", "aria-label": "Shown time" }, windows),
        h("span", { class: "soft small" }, "◆ a loop decided, ■ a person did; click to read why")),
      h("div", { class: "service-grid" },
        h("div", {}, h("div", { class: "charts" }, this.#charts.elements),
          h("h2", {}, kind === "queue" ? "Replicas" : "Instances"), this.#replicas,
          kind === "queue" ? [h("h2", {}, "Consumers"), this.#consumers] : null),
        h("div", { class: "side" }, this.#agreement, this.#wheel.element,
          h("section", { class: "card" }, h("h2", {}, "Decisions"), this.#list.element))));
    this.take(view);
  }

  /** What is not in the stream of points. */
  take(view) {
    this.#view = { ...view, points: this.#points };
    const known = new Set(view.decisions.map((decision) => decision.key));
    this.decisions = [...view.decisions, ...this.decisions.filter((decision) => !known.has(decision.key))]
      .sort((one, other) => other.at - one.at).slice(0, DECISIONS_MAX);
    this.#charts.promise(view.agreement, view.prefetch_goal);
    this.#showAgreement(view.agreement);
    this.#wheel.show(this.#view);
    this.#list.show(this.decisions);
    this.#once("consumers", view.consumers, () => fill(this.#consumers, consumersTable(view.consumers)));
    this.showRow(view.row);
  }

  /** After a while in which nothing was heard. */
  begin(view) {
    this.#points = view.points;
    this.take(view);
    this.draw();
  }

  add(point) {
    // The server's clock was set back: what was later than now was never so.
    while (this.#points.length && this.#points.at(-1).at > point.at + SET_BACK_S) this.#points.pop();
    if (this.#points.length && point.at <= this.#points.at(-1).at) return;
    this.#points.push(point);
    while (this.#points[0].at < point.at - KEPT_S) this.#points.shift();
    this.draw();
  }

  decided(decision) {
    this.decisions = [decision, ...this.decisions.filter((each) => each.key !== decision.key)].slice(0, DECISIONS_MAX);
    this.#list.show(this.decisions);
    this.draw();
  }

  draw() {
    this.#charts.show(this.#points, this.decisions, this.#window_s);
    const newest = this.#points.findLast((point) => point.replicas.length)?.replicas ?? [];
    this.#once("replicas", newest, () => fill(this.#replicas, replicasTable(newest, this.#view.row.kind)));
  }

  read(decision) {
    const { kind, name } = this.#view.row;
    history.replaceState(null, "", serviceAddress(kind, name, decision.key));
    const place = this.decisions.findIndex((each) => each.key === decision.key);
    const dialog = readDecision(decision, {
      older: this.decisions[place + 1], newer: this.decisions[place - 1], read: (other) => this.read(other),
    });
    dialog.addEventListener("close", () => {
      // Whoever has gone elsewhere meanwhile stays there.
      if (!this.#signal.aborted && !document.querySelector("dialog[open]")) history.replaceState(null, "", serviceAddress(kind, name));
    });
  }

  /** A look has not shown it. */
  miss() {
    this.#missed += 1;
    if (this.#missed === MISSED_MIN) this.#grey(true);
  }

  #grey(isGone) {
    const { kind, name } = this.#view.row;
    this.element.classList.toggle("gone", isGone);
    this.#wheel.element.inert = isGone;
    fill(this.#noMore, isGone ? h("p", { class: "no-more" },
      `There is no ${kind === "http" ? "HTTP service" : "queue"} ${name} any more, or you may not see it any more. What stands here is of ${moment(this.#points.at(-1)?.at ?? null)}.`) : null);
  }

  showRow(row) {
    this.#view.row = row;
    if (this.#missed >= MISSED_MIN) this.#grey(false);
    this.#missed = 0;
    showLight(this.#light, row.light);
    say(this.#badges, [row.kind === "http" ? "HTTP service" : "queue", row.steering, row.paused ? "paused" : ""].filter(Boolean).join(" · "));
    const facts = [
      ["In", rate(row.in_per_s)], ["Out", rate(row.out_per_s)],
      [row.kind === "http" ? "Under way" : "Waiting", count(row.waiting)], ["Oldest", duration(row.oldest_age_s)],
      [row.kind === "http" ? "Answer p95" : "Wait p95", duration(row.wait_p95_s)],
      [row.kind === "http" ? "Instances" : "Replicas", row.replicas === row.replicas_wanted ? count(row.replicas) : `${row.replicas} → ${row.replicas_wanted}`],
      ["Budget left", part(row.budget_left)], ["Dead letters", count(row.dead)],
    ];
    if (!this.#facts.children.length) fill(this.#facts, facts.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
    facts.forEach(([, text], number) => say(this.#facts.children[number].lastChild, text));
    this.#wheel.show(this.#view);
  }

  #showAgreement(agreement) {
    this.#once("agreement", agreement, () => fill(this.#agreement, h("h2", { id: "agreement" }, "Agreement"),
      agreement === null ? h("p", { class: "soft" }, "Nothing was promised of this service.") : agreementDetail(agreement)));
  }

  // What says the same is left alone: focus, selection and scrolling stay.
  #once(name, value, draw) {
    const said = JSON.stringify(value);
    if (this.#said[name] === said) return;
    this.#said[name] = said;
    draw();
  }
}

function agreementDetail(agreement) {
  const bar = budgetBar();
  bar.show(agreement.budget_left, part(agreement.budget_left));
  return [
    h("p", {}, light(agreement.light), " ", h("b", {}, agreement.name)),
    agreement.doing ? h("p", {}, agreement.doing) : null,
    agreement.alarm ? h("p", { class: "fault" }, agreement.alarm) : null,
    h("p", {}, "Budget left ", bar.element, agreement.burn_rate !== null ? ` burns ${figure(agreement.burn_rate)} × as fast as allowed` : ""),
    h("p", { class: "soft small" }, `In the last hour ${count(agreement.met)} windows met, ${count(agreement.warned)} warned, ${count(agreement.breached)} breached`,
      agreement.judged_at !== null ? `; judged ${moment(agreement.judged_at)}.` : "."),
    plainTable("Promises", [
      ["Promise", (promise) => promise.metric.replaceAll("_", " ")], ["State", (promise) => light(promise.light)],
      ["Now", (promise) => inUnit(promise.value, promise.unit), "number"], ["Warns", (promise) => inUnit(promise.warning, promise.unit), "number"],
      ["Breach", (promise) => inUnit(promise.breach, promise.unit), "number"],
    ], agreement.promises),
    agreement.promises.filter((promise) => promise.evidence && promise.light !== "met").map((promise) => h("p", { class: "soft small" }, promise.evidence)),
  ];
}

function replicasTable(replicas, kind) {
  return [plainTable(kind === "queue" ? "Replicas" : "Instances", [
    [kind === "queue" ? "Replica" : "Instance", (replica) => "#" + replica.number], ["State", (replica) => replica.state],
    [kind === "queue" ? "Waiting" : "Under way", (replica) => count(replica.waiting), "number"],
    ["In", (replica) => rate(replica.in_per_s), "number"], ["Out", (replica) => rate(replica.out_per_s), "number"],
    ["Share", (replica) => part(replica.share), "number"], ["Machine", (replica) => replica.machine_id === null ? "–" : String(replica.machine_id), "number"],
  ], replicas.slice(0, ROWS_MAX), "It has one, in the node that owns it."), cut(replicas.length)];
}

function consumersTable(consumers) {
  return [plainTable("Consumers", [
    ["Consumer", (consumer) => `${consumer.client || "client " + consumer.client_id} / ${consumer.consumer}`],
    ["Replica", (consumer) => "#" + consumer.replica, "number"], ["Prefetch", (consumer) => count(consumer.prefetch), "number"],
    ["At hand", (consumer) => count(consumer.unacknowledged), "number"], ["Done", (consumer) => rate(consumer.acked_per_s), "number"],
    ["Prefetch is", (consumer) => consumer.mode || "not steered"],
  ], consumers.slice(0, ROWS_MAX), "Nobody consumes."), cut(consumers.length)];
}

function cut(length) {
  return length > ROWS_MAX ? h("p", { class: "soft small" }, `The first ${ROWS_MAX} of ${count(length)}.`) : null;
}
