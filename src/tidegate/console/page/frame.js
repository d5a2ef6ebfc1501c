// What surrounds every page: where one is, who one is, light or dark, and whether news come in.

import { fill, h, say } from "./element.js";
import { moment } from "./figures.js";

const PLACES = [
  ["", "Overview"], ["fleet", "Fleet"], ["messages", "Messages"],
  ["models", "Models"], ["experiments", "Experiments"], ["deeds", "Deeds"],
];

export class Frame {
  #links = new Map();
  #state = h("span", { class: "connection", "data-state": "closed" });
  #user = h("span", { class: "who" });
  #banner = document.getElementById("banner");
  #live;
  #logOut;

  constructor({ live, logOut }) {
    this.#live = live;
    this.#logOut = logOut;
    for (const [page, name] of PLACES) this.#links.set(page, h("a", { href: "#/" + page }, name));
    fill(document.getElementById("top"),
      h("a", { class: "brand", href: "#/" }, h("img", { src: "/page/icon.svg", alt: "", width: 22, height: 22 }), h("span", {}, "Tidegate")),
      h("nav", { "aria-label": "Pages" }, [...this.#links.values()]),
      h("div", { class: "corner" }, this.#state, this.#user, this.#themeSwitch()));
    live.addEventListener("state", () => this.#showState());
    live.addEventListener("overview", (event) => this.#showNews(event.detail));
  }

  showPlace(page) {
    for (const [of, link] of this.#links) {
      if (of === (page === "service" ? "" : page)) { link.setAttribute("aria-current", "page"); link.scrollIntoView({ block: "nearest", inline: "nearest" }); }
      else link.removeAttribute("aria-current");
    }
  }

  showWho(who) {
    document.getElementById("top").classList.toggle("alone", who === null);
    if (who === null) {
      fill(this.#user);
      this.#banner.hidden = true;
      this.#state.hidden = true;
      return;
    }
    this.#state.hidden = false;
    const rights = who.read_only ? "may only look" : who.is_admin ? "admin" : "";
    fill(this.#user, who.user ? [who.user, rights ? h("span", { class: "soft" }, " (" + rights + ")") : null,
      h("button", { class: "quiet", onclick: this.#logOut }, "Log out")] : h("span", { class: "soft" }, "no login needed"));
  }

  showLost() {
    this.#banner.hidden = false;
    say(this.#banner, "The console cannot be reached. It is tried again by itself.");
  }

  #showState() {
    const state = this.#live.state;
    this.#state.dataset.state = state;
    if (state === "lost") {
      const last = this.#live.lastOverview;
      this.#banner.hidden = false;
      say(this.#banner, "The connection is lost; it is tried again by itself."
        + (last ? ` What you see is of ${moment(last.at)}.` : ""));
      say(this.#state, "lost");
    } else if (state === "open") {
      this.#banner.hidden = true;
      say(this.#banner, "");
    }
  }

  #showNews(overview) {
    // The clock of the news, so that one sees that they come.
    say(this.#state, moment(overview.at));
    this.#state.title = "News come in each second; this is the newest.";
  }

  #themeSwitch() {
    const button = h("button", { class: "quiet theme", type: "button" });
    const show = () => {
      const isDark = globalThis.theme.isDark();
      say(button, isDark ? "☀" : "☾");
      button.setAttribute("aria-label", isDark ? "Change to light" : "Change to dark");
      button.title = button.getAttribute("aria-label");
    };
    button.addEventListener("click", () => globalThis.theme.choose(globalThis.theme.isDark() ? "light" : "dark"));
    addEventListener("themechange", show);
    show();
    return button;
  }
}
