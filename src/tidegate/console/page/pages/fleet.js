// Machines and their slots as a map, nodes and who leads, what was decided about machines.

import { serviceAddress } from "../address.js";
import { ask } from "../api.js";
import { decisionList } from "../decisions.js";
import { fill, h, mark, say } from "../element.js";
import { bytes, count, duration, moment, plural } from "../figures.js";
import { plainTable } from "../plain_table.js";
import { every } from "../polling.js";

const STATES = ["up", "booting", "warm", "draining", "halting", "lost"];

export async function open({ signal }) {
  const tiles = h("dl", { class: "tiles" });
  const map = h("div", { class: "machines" });
  const none = h("p", { class: "soft" }, "There are no machines: replicas run in the nodes themselves.");
  const nodes = h("div");
  const decisions = decisionList({ empty: "Nothing was decided about machines yet." });
  const machines = new MachineMap(map);
  let saidOfNodes = "";
  await every(1_500, signal, async () => {
    const fleet = await ask("GET", "/fleet");
    showTiles(tiles, fleet);
    machines.show(fleet.machines);
    none.hidden = fleet.machines.length > 0;
    const said = JSON.stringify(fleet.nodes.map((node) => [node, Math.floor(node.uptime_s / 60)]).map(([node, minutes]) => ({ ...node, uptime_s: minutes })));
    if (said !== saidOfNodes) { saidOfNodes = said; fill(nodes, nodesTable(fleet.nodes)); }
    decisions.show(fleet.decisions);
  });
  return {
    title: "Fleet",
    element: h("div", { class: "page fleet" }, h("h1", {}, "Fleet"), tiles,
      h("h2", {}, "Machines"), none, map, h("h2", {}, "Nodes"), nodes,
      h("h2", {}, "Decisions about machines"), decisions.element),
  };
}

function showTiles(list, fleet) {
  const inState = (...states) => fleet.machines.filter((machine) => states.includes(machine.state)).length;
  const slots = fleet.machines.reduce((sum, machine) => sum + machine.slots, 0);
  const held = fleet.machines.reduce((sum, machine) => sum + machine.held.length, 0);
  const leader = fleet.nodes.find((node) => node.member_id === fleet.leader);
  const tiles = [
    ["Machines up", count(inState("up"))], ["Warm", count(inState("warm"))], ["Booting", count(inState("booting", "ordered"))],
    ["Slots held", `${count(held)} of ${count(slots)}`], ["Without a slot", fleet.machines.length ? count(fleet.unplaced + fleet.instances_waiting) : "–"],
    ["Leader", leader ? leader.name : fleet.leader === null ? "nobody" : "node " + fleet.leader], ["As of", moment(fleet.at)],
  ];
  if (list.children.length !== tiles.length) fill(list, tiles.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
  tiles.forEach(([, text], number) => say(list.children[number].lastChild, text));
}

/** Only machines that changed are touched; those off the screen cost no layout (content-visibility). */
class MachineMap {
  #place;
  #shown = new Map();

  constructor(place) { this.#place = place; }

  show(machines) {
    const ordered = [...machines].sort((one, other) => rank(one) - rank(other) || one.machine_id - other.machine_id);
    const there = new Set(ordered.map((machine) => machine.machine_id));
    for (const [id, card] of this.#shown) {
      if (!there.has(id)) { card.element.remove(); this.#shown.delete(id); }
    }
    let before = null;
    for (const machine of ordered) {
      let card = this.#shown.get(machine.machine_id);
      if (!card) {
        card = { element: h("article", { class: "machine" }), said: "" };
        this.#shown.set(machine.machine_id, card);
      }
      const said = JSON.stringify(machine);
      if (said !== card.said) { card.said = said; drawMachine(card.element, machine); }
      const place = before ? before.nextSibling : this.#place.firstChild;
      if (place !== card.element) this.#place.insertBefore(card.element, place);
      before = card.element;
    }
  }
}

function rank(machine) {
  const place = STATES.indexOf(machine.state);
  return place < 0 ? STATES.length : place;
}

function drawMachine(card, machine) {
  mark(card, "data-state", machine.state);
  const empty = Math.max(0, machine.slots - machine.held.length);
  fill(card,
    h("h3", {}, "Machine ", machine.machine_id, " ", h("span", { class: "state" }, machine.state)),
    h("p", { class: "soft small" }, [machine.host ?? machine.address ?? "", machine.booting_s !== null ? `booting for ${duration(machine.booting_s)}` : "",
      machine.detail].filter(Boolean).join(" · ") || plural(machine.slots, "slot")),
    h("ul", { class: "slots", "aria-label": `Slots of machine ${machine.machine_id}` },
      machine.held.map((slot) => h("li", { class: "slot", "data-state": slot.state },
        h("a", { href: serviceAddress(slot.kind, slot.service), title: `${slot.service} #${slot.number}, ${slot.state}` },
          h("span", {}, slot.service), ` #${slot.number}`),
        slot.state === "serving" ? null : h("span", { class: "small" }, slot.state))),
      Array.from({ length: empty }, () => h("li", { class: "slot free" }, "free"))));
}

function nodesTable(nodes) {
  return plainTable("Nodes", [
    ["Node", (node) => node.name], ["Leads", (node) => node.is_leader ? "leads" : ""],
    ["Address", (node) => node.address], ["Up for", (node) => duration(node.uptime_s), "number"],
    ["Queues", (node) => count(node.queues), "number"], ["Connections", (node) => count(node.connections), "number"],
    ["Memory", (node) => bytes(node.memory_bytes), "number"], ["Commit p99", (node) => duration(node.commit_p99_s), "number"],
  ], nodes, "No node answers.");
}
