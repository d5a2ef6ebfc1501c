// A live chart over time, on a canvas of our own: some lines, levels that must not be passed, and a mark for
// each decision at the moment when it was taken. The legend is HTML and says the figures under the pointer,
// or the newest ones: so they are text, for everybody.

import { colours, pen, ticks, timeTicks } from "./axes.js";
import { fill, h, say } from "./element.js";
import { moment } from "./figures.js";

const LEFT = 52, RIGHT = 8, TOP = 15, BOTTOM = 18;
// A gap of this length is drawn as one: what is older is kept each 5th second, some figures come as seldom.
const GAP_S = 12;
const NEAR_PX = 9;
// A level far above everything would flatten what is measured; the legend still says it.
const LEVEL_TIMES_MAX = 4;

/** Where people point, in all charts at once. */
export class Cursor extends EventTarget {
  at = null;
  set(at) {
    if (at === this.at) return;
    this.at = at;
    this.dispatchEvent(new Event("moved"));
  }
}

export class TimeChart {
  #title; #format; #cursor; #onMark;
  #series = [];
  #levels = [];
  #points = [];
  #decisions = [];
  #window_s = 300;
  #until = 0;
  #places = [];
  #canvas = h("canvas", { class: "plot", role: "img" });
  #legend = h("ul", { class: "legend" });
  #readings = [];
  #isVisible = true;
  #scheduled = false;
  element;

  /** format(value, largest): a figure with its unit, the one that suits the largest of an axis; onMark(decision): somebody has chosen it. */
  constructor({ title, format, cursor, onMark, signal }) {
    this.#title = title;
    this.#format = format;
    this.#cursor = cursor;
    this.#onMark = onMark;
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, title), this.#legend, this.#canvas);
    const sizes = new ResizeObserver(() => this.#soon());
    sizes.observe(this.#canvas);
    const sight = new IntersectionObserver(([entry]) => { this.#isVisible = entry.isIntersecting; this.#soon(); }, { rootMargin: "200px" });
    sight.observe(this.#canvas);
    signal.addEventListener("abort", () => { sizes.disconnect(); sight.disconnect(); });
    addEventListener("themechange", () => requestAnimationFrame(() => { this.#showLegend(); this.#soon(); }), { signal });
    cursor.addEventListener("moved", () => this.#soon(), { signal });
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerleave", () => this.#cursor.set(null));
    this.#canvas.addEventListener("click", (event) => { const near = this.#markNear(event); if (near) this.#onMark(near); });
  }

  /** series: {name, colour, of(point), dashed, step, wide}; levels: {name, value, colour}. */
  describe(series, levels = []) {
    const said = JSON.stringify([series.map((one) => [one.name, one.colour, one.dashed]), levels]);
    this.#series = series;
    this.#levels = levels;
    if (said !== this.#described) { this.#described = said; this.#showLegend(); }
  }
  #described = "";

  show(points, decisions, window_s) {
    this.#points = points;
    this.#decisions = decisions;
    this.#window_s = window_s;
    this.#until = points.at(-1)?.at ?? Date.now() / 1000;
    this.#soon();
  }

  #soon() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      if (this.#canvas.isConnected) { this.#sayFigures(); if (this.#isVisible) this.#draw(); }
    });
  }

  #showLegend() {
    this.#readings = this.#series.map(() => h("b", {}));
    fill(this.#legend,
      this.#series.map((one, number) => h("li", {}, swatch(one.colour, one.dashed ? "dashed" : "line"), one.name, " ", this.#readings[number])),
      this.#levels.map((level) => h("li", {}, swatch(level.colour, "level"), level.name, " ", h("b", {}, this.#format(level.value)))));
    this.#canvas.setAttribute("aria-label", `Chart of ${this.#title}; the newest figures stand before it, decisions in the list of decisions.`);
  }

  #sayFigures() {
    const at = this.#cursor.at ?? this.#until;
    const last = this.#placeAt(at);
    this.#series.forEach((one, number) => {
      let value = null;
      // What comes seldom is what it last was.
      for (let place = last; value === null && place >= 0 && at - this.#points[place].at <= GAP_S; place -= 1) {
        value = one.of(this.#points[place]) ?? null;
      }
      say(this.#readings[number], this.#format(value));
    });
  }

  /** The place of the newest point that is not after this moment; -1: there is none. */
  #placeAt(at) {
    let low = 0, high = this.#points.length;
    while (low < high) { const middle = (low + high) >> 1; if (this.#points[middle].at <= at) low = middle + 1; else high = middle; }
    return low - 1;
  }

  #draw() {
    const { context, width, height } = pen(this.#canvas);
    if (width <= LEFT + RIGHT) return;
    const ink = colours();
    const since = this.#until - this.#window_s;
    const points = this.#points.filter((point) => point.at >= since - GAP_S);
    const xOf = (at) => LEFT + (at - since) / this.#window_s * (width - LEFT - RIGHT);
    const rows = ticks(0, this.#highest(points));
    const yOf = (value) => height - BOTTOM - value / rows.at(-1) * (height - TOP - BOTTOM);

    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of rows) {
      const y = Math.round(yOf(value)) + 0.5;
      stroke(context, ink[value === 0 ? "axis" : "grid"], [[LEFT, y], [width - RIGHT, y]]);
      context.fillStyle = ink.soft;
      context.fillText(this.#format(value, rows.at(-1)), LEFT - 5, y);
    }
    context.textAlign = "center";
    for (const at of timeTicks(since, this.#until, width - LEFT - RIGHT)) {
      context.fillText(clock(at, this.#window_s), Math.min(xOf(at), width - RIGHT - 18), height - 7);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT - RIGHT + 1, height - BOTTOM + 1);
    context.clip();
    for (const level of this.#levels) {
      const y = Math.round(yOf(level.value)) + 0.5;
      context.setLineDash([6, 3]);
      stroke(context, ink[level.colour], [[LEFT, y], [width, y]]);
    }
    context.setLineDash([]);
    this.#drawMarks(context, ink, since, xOf, height);
    for (const one of this.#series) this.#drawSeries(context, ink, one, points, xOf, yOf);
    if (this.#cursor.at !== null) {
      context.lineWidth = 1;
      stroke(context, ink.soft, [[xOf(this.#cursor.at), TOP], [xOf(this.#cursor.at), height - BOTTOM]]);
      context.fillStyle = ink.ink;
      context.textAlign = this.#cursor.at > this.#until - this.#window_s / 2 ? "right" : "left";
      context.fillText(" " + moment(this.#cursor.at) + " ", xOf(this.#cursor.at), TOP + 6);
    }
    context.restore();
  }

  #highest(points) {
    let highest = 0;
    for (const one of this.#series) {
      for (const point of points) highest = Math.max(highest, one.of(point) ?? 0);
    }
    const base = highest;
    for (const level of this.#levels) {
      if (base === 0 || level.value <= base * LEVEL_TIMES_MAX) highest = Math.max(highest, level.value * 1.05);
    }
    return highest || 1;
  }

  #drawSeries(context, ink, one, points, xOf, yOf) {
    context.setLineDash(one.dashed ? [4, 3] : []);
    context.strokeStyle = ink[one.colour];
    // One that others lie upon is seen beside them.
    context.lineWidth = one.wide ? 3.5 : 1.6;
    context.beginPath();
    let before = null;
    for (const point of points) {
      const value = one.of(point);
      if (value === null || value === undefined) continue;
      const x = xOf(point.at), y = yOf(value);
      if (before === null || point.at - before.at > GAP_S) context.moveTo(x, y);
      else { if (one.step) context.lineTo(x, before.y); context.lineTo(x, y); }
      before = { at: point.at, y };
    }
    context.stroke();
    context.setLineDash([]);
  }

  #drawMarks(context, ink, since, xOf, height) {
    this.#places = [];
    for (const decision of this.#decisions) {
      if (decision.at < since || decision.at > this.#until + GAP_S) continue;
      const x = xOf(Math.min(decision.at, this.#until));
      this.#places.push({ x, decision });
      context.setLineDash([1, 3]);
      stroke(context, ink.violet, [[x, TOP], [x, height - BOTTOM]]);
      context.setLineDash([]);
      // A diamond is a loop's; a square is a person's; hollow was only recommended.
      context.beginPath();
      if (decision.by) context.rect(x - 4, 3, 8, 8);
      else { context.moveTo(x, 1.5); context.lineTo(x + 5.5, 7); context.lineTo(x, 12.5); context.lineTo(x - 5.5, 7); context.closePath(); }
      context.fillStyle = context.strokeStyle = ink.violet;
      if (decision.carried_out) context.fill(); else context.stroke();
    }
  }

  #markNear(event) {
    const x = event.clientX - this.#canvas.getBoundingClientRect().left;
    const near = this.#places.filter((place) => Math.abs(place.x - x) <= NEAR_PX);
    near.sort((one, other) => Math.abs(one.x - x) - Math.abs(other.x - x));
    return near[0]?.decision ?? null;
  }

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const x = Math.max(LEFT, Math.min(event.clientX - box.left, box.width - RIGHT));
    this.#cursor.set(this.#until - this.#window_s * (1 - (x - LEFT) / (box.width - LEFT - RIGHT)));
    const near = this.#markNear(event);
    this.#canvas.style.cursor = near ? "pointer" : "crosshair";
    this.#canvas.title = near ? near.headline : "";
  }
}

function stroke(context, colour, [first, ...rest]) {
  context.strokeStyle = colour;
  context.beginPath();
  context.moveTo(...first);
  for (const point of rest) context.lineTo(...point);
  context.stroke();
}

function swatch(colour, shape) {
  return h("span", { class: "swatch " + shape, style: { borderColor: `var(--${colour})` }, "aria-hidden": "true" });
}

function clock(at, window_s) {
  const when = new Date(at * 1000);
  return when.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", ...window_s <= 120 ? { second: "2-digit" } : {} });
}
