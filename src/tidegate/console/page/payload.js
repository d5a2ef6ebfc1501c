// A payload to look at: as text, as JSON that was set in lines, or as bytes.

import { fill, h } from "./element.js";

const BYTES_A_LINE = 16;

/** Tabs over the ways in which this payload can be read. */
export function payloadView(message) {
  const ways = waysOf(message);
  const place = h("pre", { class: "payload", tabindex: "0" });
  const buttons = ways.map(([name, text]) => h("button", {
    type: "button", "aria-pressed": "false",
    onclick: (event) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      fill(place, text());
    },
  }, name));
  buttons[0].click();
  return h("div", {}, h("div", { class: "segments", role: "group", "aria-label": "Show as" }, buttons), place,
    message.truncated ? h("p", { class: "soft small" }, "Only the beginning is shown.") : null);
}

function waysOf(message) {
  const ways = [];
  if (message.text !== null) {
    const pretty = prettyJson(message.text);
    if (pretty !== null) ways.push(["JSON", () => pretty]);
    ways.push(["Text", () => message.text || "(empty)"]);
    ways.push(["Hex", () => dump(new TextEncoder().encode(message.text))]);
  } else {
    ways.push(["Hex", () => dump(bytesOf(message.payload_hex ?? ""))]);
  }
  return ways;
}

function prettyJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try { return JSON.stringify(JSON.parse(text, asWritten), null, 2); } catch { return null; }
}

/** Numbers as they were written: an id of 64 bits is none that this language can count to. */
function asWritten(name, value, context) {
  return typeof value === "number" && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

function bytesOf(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

function dump(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += BYTES_A_LINE) {
    const row = [...bytes.slice(start, start + BYTES_A_LINE)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(BYTES_A_LINE * 3 - 1);
    const letters = row.map((byte) => byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·").join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${hex}  ${letters}`);
  }
  return lines.join("\n") || "(empty)";
}
