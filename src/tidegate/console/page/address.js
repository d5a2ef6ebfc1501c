// Where pages are: addresses behind the #.

const word = encodeURIComponent;

export function serviceAddress(kind, name, decision = "") {
  return `#/service/${word(kind)}/${word(name)}` + (decision ? "?decision=" + word(decision) : "");
}

export function messagesAddress(queue) { return "#/messages/" + word(queue); }

export function modelsAddress(subject) { return "#/models/" + word(subject); }
