// The only way in which this page makes elements: whatever comes from a server becomes text, never markup.

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden", "open", "readOnly"]);

/** h("a", {class: "name", href: "#/", onclick: go}, "text", child): an element. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    // The policy forbids the attribute; what is computed is set as a property.
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

/** Append texts and nodes; lists are flattened, nothing is left out. */
export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Put these children in place of those that are there. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

/** Set a text only when it is another: what stays the same costs no layout. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute only when it is another. */
export function mark(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}
