// Where the page begins: who is there, which page the address names, and one stream of news for all.

import { ask, carry, onLoggedOut } from "./api.js";
import { closeDialogs } from "./confirmation.js";
import { fill, h } from "./element.js";
import { Frame } from "./frame.js";
import { Live } from "./live.js";
import { complain } from "./toast.js";
import * as deeds from "./pages/deeds.js";
import * as experiments from "./pages/experiments.js";
import * as fleet from "./pages/fleet.js";
import * as login from "./pages/login.js";
import * as messages from "./pages/messages.js";
import * as models from "./pages/models.js";
import * as overview from "./pages/overview.js";
import * as service from "./pages/service.js";

const PAGES = { "": overview, service, fleet, messages, models, experiments, deeds };

const main = document.getElementById("main");
const live = new Live();
let who = null;
let shown = null;
const frame = new Frame({ live, logOut });

/** #/service/queue/orders?decision=7 as words and parameters. */
function route() {
  const [path, parameters = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").map((word) => {
    try { return decodeURIComponent(word); } catch { return word; }
  });
  return { page: words[0], words: words.slice(1), parameters: new URLSearchParams(parameters) };
}

async function show() {
  if (who === null) return;
  const { page, words, parameters } = route();
  // Anchors are no pages: what is shown stays, if anything is; else the overview is.
  if (shown && shown.page !== "login" && location.hash && !location.hash.startsWith("#/")) return;
  closeDialogs();
  if (shown?.page === page && shown.follow?.({ words, parameters })) return;
  leave();
  const module = PAGES[page] ?? overview;
  const context = { live, who, words, parameters, signal: null };
  const ending = new AbortController();
  context.signal = ending.signal;
  shown = { page, close: () => ending.abort(), follow: null };
  const mine = shown;
  frame.showPlace(PAGES[page] ? page : "");
  live.watch(module.watched?.(context) ?? null);
  try {
    const opened = await module.open(context);
    if (mine !== shown) return;
    mine.follow = opened.follow ?? null;
    mine.recover = opened.recover ?? null;
    document.title = opened.title + " · Tidegate";
    fill(main, opened.element);
    await opened.shown?.();
  } catch (fault) {
    if (mine !== shown) return;
    document.title = "Tidegate";
    fill(main, h("div", { class: "page" }, h("h1", {}, "This cannot be shown"),
      h("p", {}, fault.message), fault.detail ? h("p", { class: "soft" }, fault.detail) : null,
      h("p", {}, h("button", { onclick: show }, "Try again"))));
    if (!("detail" in fault)) throw fault;
  }
}

function leave() {
  closeDialogs();
  shown?.close();
  shown = null;
}

function enter(newWho) {
  who = newWho;
  carry(who.token);
  frame.showWho(who);
  show();
}

function askForLogin() {
  if (who === null && shown?.page === "login") return;
  who = null;
  leave();
  live.close();
  frame.showWho(null);
  shown = { page: "login", close: () => {} };
  document.title = "Log in · Tidegate";
  fill(main, login.form(enter));
  main.querySelector("input")?.focus();
}

async function logOut() {
  try { await ask("DELETE", "/session"); } catch (fault) { complain(fault); return; }
  askForLogin();
}

async function begin() {
  try {
    enter(await ask("GET", "/session"));
  } catch (fault) {
    if (fault.status === 401) askForLogin();
    else {
      frame.showLost();
      setTimeout(begin, 2_000);
    }
  }
}

live.addEventListener("loggedout", askForLogin);
live.addEventListener("session", (event) => {
  // An answer may come when its session has ended already. It must not disturb the login form.
  if (who === null) return;
  who = event.detail;
  carry(who.token);
  frame.showWho(who);
});
live.addEventListener("state", (event) => {
  // What was missed while nobody was heard is asked for, not guessed.
  if (event.detail.recovered) shown?.recover?.().catch((fault) => { if (!("detail" in fault)) throw fault; });
});
// Not by its address: that would be another page's, and gone with the next reload.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
onLoggedOut(askForLogin);
addEventListener("hashchange", show);
begin();
