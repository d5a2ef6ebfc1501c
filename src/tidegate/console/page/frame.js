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
  // When a node has answered last; null: none did since this page was opened.
  #answeredAt = null;
  #isAnswered = true;
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
    this.#warn("The console cannot be reached. It is tried again by itself.");
  }

  #showState() {
    const state = this.#live.state;
    if (state === "lost") {
      this.#warn("The connection is lost; it is tried again by itself." + this.#seenAt());
      say(this.#state, "lost");
    } else if (state === "open") this.#warn(this.#isAnswered ? "" : this.#unanswered());
    this.#state.dataset.state = state === "open" && !this.#isAnswered ? "unanswered" : state;
  }

  #showNews(overview) {
    // The console repeats what it knew when no node answers: it is not to pass for news.
    this.#isAnswered = overview.nodes > 0;
    if (this.#isAnswered) this.#answeredAt = overview.at;
    this.#showState();
    // The clock of the news, so that one sees that they come.
    say(this.#state, this.#isAnswered ? moment(overview.at) : "no node");
    this.#state.title = this.#isAnswered ? "News come in each second; this is the newest." : this.#unanswered();
  }

  #unanswered() { return "No node answers; the console goes on asking." + this.#seenAt(); }

  #seenAt() { return this.#answeredAt === null ? "" : ` What you see is of ${moment(this.#answeredAt)}.`; }

  #warn(text) {
    this.#banner.hidden = !text;
    say(this.#banner, text);
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
