// The login: the broker's own users, checked by the broker.

import { ask } from "../api.js";
import { field } from "../confirmation.js";
import { h, say } from "../element.js";

export function form(enter) {
  const user = h("input", { name: "user", autocomplete: "username", required: true, autocapitalize: "off", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const logIn = async (event) => {
    event.preventDefault();
    button.disabled = true;
    fault.hidden = true;
    try {
      enter(await ask("POST", "/session", { user: user.value, password: password.value }));
    } catch (refused) {
      fault.hidden = false;
      say(fault, refused.message + (refused.detail ? " " + refused.detail : ""));
      password.value = "";
      password.focus();
    }
    button.disabled = false;
  };
  return h("form", { class: "login", onsubmit: logIn },
    h("h1", {}, "Log in"), h("p", { class: "soft" }, "With the name and password that you have at the broker."),
    field("Name", user), field("Password", password), fault, h("div", { class: "actions" }, button));
}
