// One stream of events for the whole page, and what becomes of it: a lost one says so and comes back.
//
// Browsers reconnect by themselves only after some faults (not after a refused answer, not after a
// machine that went silent), so the page does it: silence counts as lost, and tries are spaced.
// A page that nobody sees gives its stream back: browsers have six connections to a server for all of
// their pages together, and a seventh page would wait for ever.

import { ask } from "./api.js";

const SILENCE_MS = 5_000;
// Who looks at another page for a moment comes back to one that is up to date.
const REST_MS = 5_000;
const AGAIN_MS = [500, 1_000, 2_000, 3_000];

/** Events `overview`, `point`, `decision` from the server, and `state` (open, lost, resting) of our own. */
export class Live extends EventTarget {
  #source = null;
  #service = null;
  #tries = 0;
  #silence = 0;
  #again = 0;
  #rest = 0;
  state = "closed";
  lastOverview = null;

  constructor() {
    super();
    document.addEventListener("visibilitychange", () => this.#seen());
  }

  /** Begin, or go on with another service. */
  watch(service) {
    if (this.#source && service === this.#service) return;
    this.#service = service;
    this.#open();
  }

  close() {
    this.#stop();
    this.state = "closed";
  }

  /** Whether somebody sees the page has changed. */
  #seen() {
    clearTimeout(this.#rest);
    if (this.state === "resting" && !document.hidden) this.#open();
    else if (this.state !== "closed" && document.hidden) {
      this.#rest = setTimeout(() => { this.#stop(); this.#become("resting"); }, REST_MS);
    }
  }

  #stop() {
    clearTimeout(this.#silence);
    clearTimeout(this.#again);
    this.#source?.close();
    this.#source = null;
  }

  #open() {
    this.#stop();
    const source = new EventSource("/api/live" + (this.#service ? "?service=" + encodeURIComponent(this.#service) : ""));
    this.#source = source;
    for (const name of ["overview", "point", "decision"]) {
      source.addEventListener(name, (event) => { if (source === this.#source) this.#heard(name, event.data); });
    }
    source.onerror = () => { if (source === this.#source) this.#lost(); };
    this.#listen();
  }

  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(), SILENCE_MS);
  }

  #heard(name, data) {
    this.#listen();
    this.#tries = 0;
    const detail = JSON.parse(data);
    if (name === "overview") this.lastOverview = detail;
    this.#become("open");
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #lost() {
    this.#stop();
    this.#become("lost");
    const pause = AGAIN_MS[Math.min(this.#tries, AGAIN_MS.length - 1)];
    this.#tries += 1;
    this.#again = setTimeout(() => this.#return(), pause);
  }

  async #return() {
    try {
      // A session may have ended with the console that knew it; then the login comes instead.
      this.dispatchEvent(new CustomEvent("session", { detail: await ask("GET", "/session") }));
      if (this.state === "lost") this.#open();
    } catch (fault) {
      if (fault.status === 401) this.dispatchEvent(new Event("loggedout"));
      else if (this.state === "lost") this.#lost();
    }
  }

  #become(state) {
    if (state === this.state) return;
    const wasAway = this.state === "lost" || this.state === "resting";
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, recovered: wasAway && state === "open" } }));
  }
}
