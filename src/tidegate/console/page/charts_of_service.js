// Which charts a service has, and what each of them draws out of its points.

import { count, duration, figure, part, rate } from "./figures.js";
import { Cursor, TimeChart } from "./time_chart.js";

const LINES_MAX = 6;
const LINE_COLOURS = ["blue", "teal", "amber", "violet", "brick", "grey"];

/** All charts of a service; they share where people point and what was decided. */
export class ServiceCharts {
  #charts = {};
  #kind;
  #levels = { rates: [], waits: [] };
  #hasTarget = false;

  constructor({ kind, onMark, signal }) {
    this.#kind = kind;
    const cursor = new Cursor();
    const make = (title, format) => new TimeChart({ title, format, cursor, onMark, signal });
    const isQueue = kind === "queue";
    this.#charts = {
      rates: make(isQueue ? "Arrival and consumption" : "Requests and answers", rate),
      waiting: make(isQueue ? "Waiting, by replica" : "Under way, by instance", count),
      waits: make(isQueue ? "How long messages wait" : "How long answers take", duration),
      prefetch: make("Prefetch, target and actual", figure),
      shares: make(isQueue ? "Shares of replicas" : "Shares of instances", part),
      replicas: make(isQueue ? "Replicas and machines" : "Instances and machines", count),
    };
  }

  get elements() { return Object.values(this.#charts).map((chart) => chart.element); }

  /** The lines of an agreement, where it warns and where it is breached, and the goal of the prefetch. */
  promise(agreement, goal) {
    // Who keeps up aims at what the handler can do, which is a guess each second: no line to hold on to.
    this.#hasTarget = /^\d.*\/s/.test(goal);
    this.#levels = { rates: [], waits: [] };
    for (const promise of agreement?.promises ?? []) {
      const place = /^(wait|response|service)_p|^oldest_age/.test(promise.metric) ? "waits" : promise.metric === "throughput" ? "rates" : null;
      if (!place) continue;
      const name = promise.metric.replaceAll("_", " ");
      if (promise.warning !== null) this.#levels[place].push({ name: `${name} warns at`, value: promise.warning, colour: "amber" });
      if (promise.breach !== null) this.#levels[place].push({ name: `${name} breached at`, value: promise.breach, colour: "brick" });
    }
  }

  show(points, decisions, window_s) {
    const isQueue = this.#kind === "queue";
    const since = (points.at(-1)?.at ?? 0) - window_s;
    const seen = points.filter((point) => point.at >= since);
    const has = (of) => seen.some((point) => of(point) !== null && of(point) !== undefined);
    const { rates, waiting, waits, prefetch, shares, replicas } = this.#charts;
    rates.describe([
      { name: isQueue ? "put" : "asked", colour: "blue", wide: true, of: (point) => point.in_per_s },
      { name: isQueue ? "taken" : "answered", colour: "teal", of: (point) => point.out_per_s },
      ...this.#hasTarget && has((point) => point.target_per_s) ? [{ name: "target", colour: "amber", dashed: true, of: (point) => point.target_per_s }] : [],
    ], this.#levels.rates);
    const lines = lineNumbers(seen);
    waiting.describe([
      { name: "all", colour: "ink", of: (point) => point.waiting },
      ...lines.length > 1 || lines.others ? perReplica(lines, (replica) => replica.waiting) : [],
    ]);
    waits.describe([
      { name: "p50", colour: "teal", of: (point) => point.wait_p50_s },
      { name: "p95", colour: "blue", of: (point) => point.wait_p95_s },
      { name: "p99", colour: "violet", of: (point) => point.wait_p99_s },
      ...isQueue ? [{ name: "oldest", colour: "grey", dashed: true, of: (point) => point.oldest_age_s }] : [],
    ], this.#levels.waits);
    prefetch.describe([
      { name: "actual", colour: "blue", step: true, of: (point) => point.prefetch },
      { name: "target", colour: "amber", dashed: true, step: true, of: (point) => point.prefetch_wanted },
    ]);
    prefetch.element.hidden = !has((point) => point.prefetch ?? point.prefetch_wanted);
    shares.describe(perReplica(lines, (replica) => replica.share, true));
    shares.element.hidden = !seen.some((point) => point.replicas.some((replica) => replica.share !== null));
    replicas.describe([
      { name: "serving", colour: "teal", step: true, of: (point) => replicasIn(point, (replica) => replica.state === "serving" || replica.state === "ready") },
      { name: "all", colour: "grey", dashed: true, step: true, of: (point) => replicasIn(point, () => true) },
      ...has((point) => point.machines) ? [{ name: "machines", colour: "violet", step: true, of: (point) => point.machines }] : [],
    ]);
    replicas.element.hidden = !lines.length && !has((point) => point.machines);
    for (const chart of Object.values(this.#charts)) {
      if (!chart.element.hidden) chart.show(points, decisions, window_s);
    }
  }
}

// A point that was thinned out says nothing about replicas, which is not the same as none.
function replicasIn(point, isCounted) {
  return point.replicas.length ? point.replicas.filter(isCounted).length : null;
}

/** The replicas that get a line of their own: of many, those with most to do now. */
function lineNumbers(points) {
  const newest = points.findLast((point) => point.replicas.length)?.replicas ?? [];
  const busiest = [...newest].sort((one, other) => other.waiting - one.waiting || one.number - other.number);
  const chosen = (newest.length <= LINES_MAX ? busiest : busiest.slice(0, LINES_MAX - 1)).map((replica) => replica.number);
  chosen.sort((one, other) => one - other);
  chosen.others = newest.length - chosen.length;
  return chosen;
}

function perReplica(numbers, of, isStep = false) {
  const chosen = new Set(numbers);
  const series = numbers.map((number, place) => ({
    name: "#" + number, colour: LINE_COLOURS[place], step: isStep,
    of: (point) => { const found = point.replicas.find((replica) => replica.number === number); return found ? of(found) : null; },
  }));
  if (numbers.others) {
    series.push({
      name: `${numbers.others} others, on average`, colour: "grey", dashed: true,
      of: (point) => {
        const others = point.replicas.filter((replica) => !chosen.has(replica.number));
        return others.length ? others.reduce((sum, replica) => sum + (of(replica) ?? 0), 0) / others.length : null;
      },
    });
  }
  return series;
}
