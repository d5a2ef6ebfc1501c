// Short words in a corner about what was just done, or refused; spoken by screen readers.

import { h } from "./element.js";

const SHOWN_MS = 6_000;

function show(kind, text, detail) {
  const toast = h("div", { class: "toast " + kind }, h("strong", {}, text), detail ? h("span", {}, " " + detail) : null);
  toast.append(h("button", { class: "quiet", "aria-label": "Close", onclick: () => toast.remove() }, "×"));
  document.getElementById("toasts").append(toast);
  // What went wrong stays until it was read.
  if (kind === "done") setTimeout(() => toast.remove(), SHOWN_MS);
}

export function tell(text) { show("done", text, ""); }

export function complain(fault) { show("refused", fault.message, fault.detail ?? ""); }
