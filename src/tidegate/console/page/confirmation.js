// Dialogs: <dialog> keeps the focus inside and Escape closes it. One asks, another shows something to read.

import { fill, h } from "./element.js";
import { complain, tell } from "./toast.js";

/** Whoever has gone elsewhere is asked no more about what was there. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

function opened(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  // A click beside it closes it, as people expect.
  dialog.addEventListener("pointerdown", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
  return dialog;
}

let numbers = 0;

function titled(title, ...children) {
  const id = "dialog-" + (numbers += 1);
  return h("dialog", { "aria-labelledby": id }, h("div", { class: "dialog" }, h("h2", { id }, title), children));
}

/** Show something to read; gives the dialog. */
export function reading(title, ...children) {
  const dialog = titled(title, children);
  dialog.firstChild.append(h("div", { class: "actions" },
    h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close")));
  dialog.classList.add("reading");
  return opened(dialog);
}

/** Say what will happen and do it when told to. `fields` are put in between; `act` gives what to say after. */
export function confirmation({ title, will, fields = [], button, danger = false, typed = "", act }) {
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const doIt = h("button", { type: "submit", class: danger ? "danger" : "primary" }, button);
  const typing = typed ? h("input", { autocomplete: "off", spellcheck: "false", required: true }) : null;
  const form = h("form", { method: "dialog" },
    h("div", { class: "will" }, [will].flat().map((line) => h("p", {}, line))),
    fields,
    typing ? h("label", {}, h("span", {}, "To be sure, write ", h("code", {}, typed)), typing) : null,
    fault,
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), doIt));
  const dialog = titled(title, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (typing && typing.value !== typed) {
      refuse(fault, new Error(`This is not ${typed}.`));
      typing.focus();
      return;
    }
    doIt.disabled = true;
    try {
      const said = await act(form);
      dialog.close();
      if (said) tell(said);
    } catch (refused) {
      // Who has closed it, or gone elsewhere, is told all the same.
      if (dialog.open) refuse(fault, refused);
      else complain(refused);
    }
    doIt.disabled = false;
  });
  return opened(dialog);
}

function refuse(element, fault) {
  element.hidden = false;
  fill(element, fault.message, fault.detail ? " " + fault.detail : "");
}

/** Do something at once, and say how it went. */
export async function doing(act) {
  try {
    const said = await act();
    if (said) tell(said);
    return true;
  } catch (fault) {
    complain(fault);
    return false;
  }
}

/** A labelled field of a form. */
export function field(label, input, hint = "") {
  const id = "field-" + (numbers += 1);
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", id + "-hint");
  return h("div", { class: "field" }, h("label", { for: id }, label), input,
    hint ? h("small", { id: id + "-hint", class: "soft" }, hint) : null);
}
