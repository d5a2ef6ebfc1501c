// All services at a glance: the one thing that needs somebody on top, then a line for each.

import { messagesAddress, serviceAddress } from "../address.js";
import { ask } from "../api.js";
import { confirmation, field } from "../confirmation.js";
import { fill, h, mark, say } from "../element.js";
import { count, duration, part, plural, rate } from "../figures.js";
import { LIGHTS, budgetBar, light, showLight } from "../light.js";
import { LongTable, textColumn } from "../long_table.js";

const COLUMNS = [
  {
    title: "Agreement", name: "c-light", sort: (row) => LIGHTS.indexOf(row.light) * 2 + (row.budget_left ?? 1),
    make(cell) {
      const shown = light("none");
      cell.append(shown);
      return (row) => showLight(shown, row.light);
    },
  },
  {
    title: "Service", name: "c-name", isHeader: true, sort: (row) => row.name,
    make(cell) {
      const link = h("a", {});
      const badge = h("span", { class: "badge" });
      cell.append(link, badge);
      return (row) => {
        say(link, row.name);
        mark(link, "href", serviceAddress(row.kind, row.name));
        mark(link, "title", row.name);
        const words = [row.kind === "http" ? "HTTP" : "", row.paused ? "paused" : "", row.steering === "manual" ? "manual" : ""];
        say(badge, words.filter(Boolean).join(" · "));
        badge.hidden = !badge.textContent;
      };
    },
  },
  {
    title: "Budget left", name: "c-budget", number: true, sort: (row) => row.budget_left,
    make(cell) {
      const bar = budgetBar();
      cell.append(bar.element);
      return (row) => bar.show(row.budget_left, part(row.budget_left));
    },
  },
  textColumn("In", "c-in", (row) => rate(row.in_per_s), { number: true, sort: (row) => row.in_per_s }),
  textColumn("Out", "c-out", (row) => rate(row.out_per_s), { number: true, sort: (row) => row.out_per_s }),
  textColumn("Waiting", "c-waiting", (row) => count(row.waiting), { number: true, sort: (row) => row.waiting }),
  textColumn("Oldest", "c-oldest", (row) => duration(row.oldest_age_s), { number: true, sort: (row) => row.oldest_age_s }),
  textColumn("Wait p95", "c-p95", (row) => duration(row.wait_p95_s), { number: true, sort: (row) => row.wait_p95_s }),
  textColumn("Replicas", "c-replicas",
    (row) => row.replicas === row.replicas_wanted ? String(row.replicas) : `${row.replicas} → ${row.replicas_wanted}`,
    { number: true, sort: (row) => row.replicas }),
  textColumn("Consumers", "c-consumers", (row) => count(row.consumers), { number: true, sort: (row) => row.consumers }),
  {
    title: "Dead", name: "c-dead", number: true, sort: (row) => row.dead,
    make(cell) {
      const link = h("a", {});
      return (row) => {
        if (!row.dead) { fill(cell, "0"); return; }
        say(link, count(row.dead));
        mark(link, "href", messagesAddress(row.dead_queue));
        if (link.parentNode !== cell) fill(cell, link);
      };
    },
  },
];

export async function open({ live, who, signal }) {
  const attention = h("section", { class: "attention", "aria-label": "What needs attention" });
  const tiles = h("dl", { class: "tiles" });
  const complaints = h("ul", { class: "complaints", hidden: true });
  const shownCount = h("span", { class: "soft", role: "status" });
  const words = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name" });
  const only = h("select", { "aria-label": "Filter by agreement" },
    h("option", { value: "" }, "all agreements"),
    LIGHTS.map((name) => h("option", { value: name }, name === "none" ? "no promise" : name)));
  const table = new LongTable({
    caption: "Services", columns: COLUMNS, keyOf: (row) => row.kind + "/" + row.name,
    sorted: { column: 0, down: false }, signal,
  });
  const filter = () => {
    const wanted = words.value.trim().toLowerCase();
    table.filter = (row) => (!wanted || row.name.toLowerCase().includes(wanted)) && (!only.value || row.light === only.value);
    showCount();
  };
  words.addEventListener("input", filter);
  only.addEventListener("change", filter);
  let last = null;
  const showCount = () => say(shownCount, last && table.visibleCount !== last.services.length
    ? `${count(table.visibleCount)} of ${plural(last.services.length, "service")}` : "");
  const empty = h("p", { class: "soft", hidden: true },
    "There are no queues and no HTTP services yet. Put a message: ", h("code", {}, "tidegate put hello 'first message'"));

  const show = (overview) => {
    last = overview;
    showAttention(attention, overview.attention, overview.services.length);
    showTiles(tiles, overview);
    complaints.hidden = !overview.complaints.length;
    if (complaints.dataset.said !== overview.complaints.join("\n")) {
      complaints.dataset.said = overview.complaints.join("\n");
      fill(complaints, overview.complaints.map((text) => h("li", {}, text)));
    }
    empty.hidden = overview.services.length > 0;
    table.rows = overview.services;
    showCount();
  };
  live.addEventListener("overview", (event) => show(event.detail), { signal });
  return {
    title: "Overview",
    element: h("div", { class: "page overview" }, h("h1", { class: "unseen" }, "Overview"), attention, tiles, complaints,
      h("div", { class: "tools" }, words, only, shownCount,
        h("button", { type: "button", class: "last", disabled: who.read_only, title: who.read_only ? "You may only look." : null, onclick: makeQueue }, "New queue")),
      table.element, empty),
    // Rows are as many as fit, which is known once the table stands on the page.
    shown: async () => show(live.lastOverview ?? await ask("GET", "/overview")),
  };
}

function makeQueue() {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const kind = h("select", {}, h("option", { value: "durable" }, "durable: what is confirmed is on disk"),
    h("option", { value: "transient" }, "transient: in memory only, lost with its node"));
  confirmation({
    title: "New queue", button: "Make it", will: "An empty queue is made; producers and consumers can use it at once.",
    fields: [field("Name", name), field("Kind", kind)],
    act: async () => {
      await ask("POST", "/queues", { name: name.value, durable: kind.value === "durable" });
      return `${name.value} is there.`;
    },
  });
}

function showAttention(section, attention, services) {
  const said = JSON.stringify(attention) + services;
  if (section.dataset.said === said) return;
  section.dataset.said = said;
  section.dataset.light = attention?.light ?? "met";
  if (attention === null) {
    fill(section, light(services ? "met" : "none"), h("p", {}, services ? "All is well. Nothing needs you." : "Nothing runs here yet."));
    return;
  }
  fill(section, light(attention.light),
    h("div", {}, h("p", {}, h("strong", {}, attention.text)), attention.advice ? h("p", { class: "soft" }, attention.advice) : null),
    attention.kind ? h("a", { class: "button", href: serviceAddress(attention.kind, attention.service) }, "Look at ", attention.service) : null);
}

function showTiles(list, overview) {
  const { services } = overview;
  const sum = (of) => services.reduce((total, row) => total + of(row), 0);
  const byLight = LIGHTS.map((name) => [name, services.filter((row) => row.light === name).length]).filter(([, number]) => number);
  const tiles = [
    ["Services", count(services.length)],
    ["In", rate(sum((row) => row.in_per_s))], ["Out", rate(sum((row) => row.out_per_s))],
    ["Waiting", count(sum((row) => row.waiting))],
    ["Replicas", count(sum((row) => row.replicas))],
    ["Nodes", count(overview.nodes)],
    ["Machines", count(overview.machines_up) + machinesBesides(overview)],
    ["Agreements", byLight.map(([name, number]) => `${number} ${name === "none" ? "without" : name}`).join(", ") || "none"],
  ];
  if (list.children.length !== tiles.length) {
    fill(list, tiles.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
  }
  tiles.forEach(([, text], number) => say(list.children[number].lastChild, text));
}

function machinesBesides(overview) {
  const besides = [
    overview.machines_booting ? `${overview.machines_booting} booting` : "",
    overview.machines_warm ? `${overview.machines_warm} warm` : "",
  ].filter(Boolean);
  return besides.length ? ` (${besides.join(", ")})` : "";
}
