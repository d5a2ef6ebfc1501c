// What waits in a queue, without taking it: browse, filter, read a payload, send dead letters back, put a test message.

import { messagesAddress, serviceAddress } from "../address.js";
import { LONG_PATIENCE_MS, ask, query, segment } from "../api.js";
import { confirmation, field, reading } from "../confirmation.js";
import { fill, h, say } from "../element.js";
import { bytes, count, moment, plural, wholeMoment } from "../figures.js";
import { payloadView } from "../payload.js";
import { plainTable } from "../plain_table.js";

const PAGE_COUNT = 50;
const PREVIEW_LETTERS = 120;

export async function open({ words, live, who }) {
  const overview = live.lastOverview ?? await ask("GET", "/overview");
  const queues = queuesOf(overview);
  const view = new Browser(queues, who);
  await view.browse(words[0] ?? queues.find((queue) => queue.waiting)?.name ?? queues[0]?.name ?? "");
  return {
    title: "Messages",
    element: view.element,
    follow: ({ words: now }) => { view.browse(now[0] ?? ""); return true; },
  };
}

/** Queues, and the dead-letter queues that are not listed by themselves. */
function queuesOf(overview) {
  const rows = overview.services.filter((row) => row.kind === "queue");
  const names = new Map(rows.map((row) => [row.name, { name: row.name, waiting: row.waiting, deadOf: "" }]));
  for (const row of rows) {
    if (!row.dead_queue) continue;
    names.get(row.name).dead = row;
    if (row.dead || names.has(row.dead_queue)) names.set(row.dead_queue, { ...names.get(row.dead_queue), name: row.dead_queue, waiting: row.dead, deadOf: row.name });
  }
  return [...names.values()].sort((one, other) => one.name < other.name ? -1 : 1);
}

class Browser {
  #queue = "";
  #allowed = [];
  #messages = [];
  #next = null;
  // There may be more that nobody can page to, and how many were looked at.
  #isCut = false;
  #lookedAt = 0;
  #asked = 0;
  #who;
  #queues;
  #name;
  #filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter by text, header or reason" });
  #state = h("p", { class: "soft", role: "status" });
  #list = h("div");
  #more = h("button", { type: "button", onclick: () => this.#load(true) }, "More");
  #actions = h("div", { class: "actions" });
  element;

  constructor(queues, who) {
    this.#who = who;
    this.#queues = queues;
    this.#name = h("input", { list: "queues", "aria-label": "Queue", placeholder: "Queue", autocomplete: "off", spellcheck: "false" });
    this.#name.addEventListener("change", () => { if (this.#name.value) location.hash = messagesAddress(this.#name.value); });
    let waiting = 0;
    this.#filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => this.#load(false), 300); });
    this.element = h("div", { class: "page messages" }, h("h1", {}, "Messages"),
      h("datalist", { id: "queues" }, queues.map((queue) => h("option", { value: queue.name }, plural(queue.waiting, "message")))),
      h("div", { class: "tools" }, this.#name, this.#filter,
        h("button", { type: "button", onclick: () => this.#load(false) }, "Look again"), this.#actions),
      this.#state, this.#list, h("p", {}, this.#more));
  }

  async browse(queue) {
    this.#queue = queue;
    this.#name.value = queue;
    this.#allowed = [];
    this.#more.hidden = true;
    if (!queue) { say(this.#state, "There are no queues yet."); return; }
    let allowed = [];
    try {
      ({ allowed } = await ask("GET", `/services/queue/${segment(queue)}?points=false`));
    } catch (fault) {
      if (!("detail" in fault)) throw fault;
    }
    // Somebody has meanwhile gone on to another.
    if (queue !== this.#queue) return;
    this.#allowed = allowed;
    this.#showActions();
    await this.#load(false);
  }

  async #load(isMore) {
    const asked = this.#asked += 1;
    let page;
    try {
      page = await ask("GET", `/queues/${segment(this.#queue)}/messages` + query({
        after: isMore ? this.#next : null, count: PAGE_COUNT, filter: this.#filter.value.trim(),
      }));
    } catch (fault) {
      if (!("detail" in fault)) throw fault;
      if (asked !== this.#asked) return;
      fill(this.#list);
      this.#more.hidden = true;
      say(this.#state, `${fault.message} ${fault.detail}`);
      return;
    }
    // Somebody has meanwhile asked for something else, and may have got it.
    if (asked !== this.#asked) return;
    this.#messages = isMore ? [...this.#messages, ...page.messages] : page.messages;
    this.#next = page.next_after;
    this.#isCut = page.is_cut;
    this.#lookedAt = page.looked_at;
    this.#more.hidden = page.next_after === null;
    say(this.#state, this.#summary());
    this.#showList();
  }

  #summary() {
    const shown = this.#messages.length;
    if (!shown) return this.#next === null ? "" : "None was found so far; More looks on.";
    if (this.#isCut && this.#filter.value.trim() && shown < PAGE_COUNT) {
      return `Of the first ${count(this.#lookedAt)} these ${count(shown)} match; looking takes nothing.`;
    }
    return `${this.#next === null && !this.#isCut ? "All" : "The first"} ${count(shown)} are shown; looking takes nothing.`
      + (this.#isCut ? " Those of a queue with replicas have no further pages: a filter finds others." : "");
  }

  #whyEmpty() {
    if (this.#next !== null) return "None of those that were looked at matches.";
    if (this.#isCut) return this.#lookedAt ? `None of the first ${count(this.#lookedAt)} matches.` : "Messages wait, and none could be shown: look again.";
    return this.#filter.value ? "No message that waits matches." : "Nothing waits in this queue.";
  }

  #showList() {
    const isDead = this.#messages.some((message) => message.reason);
    const columns = [
      ["Message", (message) => h("button", { type: "button", class: "link", onclick: () => this.#read(message) }, String(message.message_id))],
      ["Put", (message) => moment(message.at), "when"],
      ["Priority", (message) => String(message.priority), "number c-more"], ["Size", (message) => bytes(message.size_bytes), "number"],
      ["Deliveries", (message) => String(message.delivery_count), "number c-more"],
      ...isDead ? [["Reason", (message) => message.reason], ["From", (message) => message.origin]] : [],
      ["Payload", (message) => h("code", { class: "preview" }, message.text !== null
        ? message.text.slice(0, PREVIEW_LETTERS) : (message.payload_hex ?? "").slice(0, PREVIEW_LETTERS / 2) + " (bytes)")],
    ];
    fill(this.#list, plainTable(`Messages of ${this.#queue}`, columns, this.#messages, this.#whyEmpty()));
  }

  #read(message) {
    const headers = Object.entries(message.headers);
    reading(`Message ${message.message_id}`,
      h("dl", { class: "explained" },
        [["Put", wholeMoment(message.at)], ["Size", bytes(message.size_bytes)], ["Priority", message.priority],
          ["Deliveries", message.delivery_count], ["Dead because", message.reason], ["Comes from", message.origin]]
          .filter(([, text]) => text !== "").map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
        headers.map(([name, text]) => [h("dt", {}, h("code", {}, name)), h("dd", {}, text)])),
      payloadView(message));
  }

  #showActions() {
    const queue = this.#queues.find((each) => each.name === this.#queue);
    const isDead = queue?.deadOf || /\.dead$/.test(this.#queue);
    fill(this.#actions,
      h("a", { class: "button", href: serviceAddress("queue", this.#queue) }, "Its charts"),
      this.#action("put", "Put a message", () => this.#put()),
      queue?.dead?.dead ? h("a", { class: "button", href: messagesAddress(queue.dead.dead_queue) }, plural(queue.dead.dead, "dead letter")) : null,
      isDead ? this.#action("redrive", "Redrive", () => this.#redrive()) : null);
  }

  #action(right, words, act) {
    const may = this.#allowed.includes(right);
    const why = this.#who.read_only ? "You may only look." : `Your roles on ${this.#queue} do not allow this.`;
    return h("button", { type: "button", disabled: !may, title: may ? null : why, onclick: act }, words);
  }

  #put() {
    // What was asked about, wherever one is when it is done.
    const queue = this.#queue;
    const text = h("textarea", { rows: 6, spellcheck: "false" });
    const headers = h("textarea", { rows: 2, spellcheck: "false", placeholder: "trace: test" });
    const priority = h("input", { type: "number", min: 1, max: 10, value: "5", required: true });
    const delay = h("input", { type: "number", min: 0, step: "any", value: "0" });
    const group = h("input", { autocomplete: "off" });
    confirmation({
      title: "Put a message", button: "Put it",
      will: `A message is put to ${queue}; its consumers will get it like any other.`,
      fields: [field("Text", text), field("Headers", headers, "One a line, name: value"),
        h("div", { class: "row" }, field("Priority", priority), field("Delay in seconds", delay), field("Group", group))],
      act: async () => {
        const put = await ask("POST", `/queues/${segment(queue)}/messages`, {
          text: text.value, headers: headersIn(headers.value), priority: Number(priority.value),
          delay_s: Number(delay.value), group: group.value || null,
        });
        if (queue === this.#queue) await this.#load(false);
        return `Message ${put.message_id} was put to ${queue}.`;
      },
    });
  }

  #redrive() {
    const queue = this.#queue;
    const number = h("input", { type: "number", min: 1, placeholder: "all" });
    const to = h("input", { list: "queues", autocomplete: "off", placeholder: "where they came from" });
    confirmation({
      title: `Redrive ${queue}`, button: "Redrive",
      will: `Messages leave ${queue} and are delivered again, oldest first. What made them fail is not mended by this.`,
      fields: [h("div", { class: "row" }, field("How many", number), field("To", to))],
      act: async () => {
        const { moved } = await ask("POST", `/queues/${segment(queue)}/redrive`,
          { count: number.value ? Number(number.value) : null, to: to.value || null }, LONG_PATIENCE_MS);
        if (queue === this.#queue) await this.#load(false);
        return `${plural(moved, "message")} went back.`;
      },
    });
  }
}

function headersIn(text) {
  const headers = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const [name, ...rest] = line.split(":");
    if (!rest.length) throw new Error(`A header is written name: value, not ${line}.`);
    headers[name.trim()] = rest.join(":").trim();
  }
  return headers;
}
