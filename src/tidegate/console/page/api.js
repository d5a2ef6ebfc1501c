// The API as the page uses it: one function, one error that carries what the server said and what to do.

/** What the server refused, in its own sentence; `code` is for programs. */
export class Refused extends Error {
  constructor(status, problem) {
    super(sentence(problem.detail || problem.error || `the server answered with ${status}`));
    this.status = status;
    this.code = problem.error ?? "";
    this.detail = "";
  }
}

/** Servers and logs begin small and end open; a page does not. */
function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : begun + ".";
}

/** The server could not be reached at all, or did not answer: what was to be changed may be or not. */
export class Unreachable extends Error {
  constructor(isChange) {
    super("The console cannot be reached.");
    this.detail = isChange ? "Whether it was done is not known: look before you try again." : "It is tried again by itself.";
  }
}

const PATIENCE_MS = 15_000;
/** For what takes the longer the more messages there are. */
export const LONG_PATIENCE_MS = 120_000;
let token = "";
let loggedOut = () => {};

/** What everything that changes something carries. */
export function carry(newToken) { token = newToken; }

/** Whom to tell when a session has ended. */
export function onLoggedOut(callback) { loggedOut = callback; }

/** A name as a part of a path. `.` and `..` are steps to a browser, encoded or not: %1E before them says that they are names. */
export function segment(text) { return /^\.\.?$/.test(text) ? "%1E" + text : encodeURIComponent(text); }

/** The parameters that are there, as a query. */
export function query(parameters) {
  const there = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return there.length ? "?" + new URLSearchParams(there) : "";
}

/** Ask below /api; gives what the JSON says. */
export async function ask(method, path, body, patience_ms = PATIENCE_MS) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-Tidegate-Token"] = token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch("/api" + path, {
      method, headers, credentials: "same-origin", cache: "no-store", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(patience_ms),
    });
  } catch {
    throw new Unreachable(method !== "GET");
  }
  const said = await saidIn(answer);
  if (answer.ok) return said;
  if (answer.status === 401 && path !== "/session") loggedOut();
  throw new Refused(answer.status, said ?? {});
}

async function saidIn(answer) {
  const text = await answer.text();
  try { return text ? JSON.parse(text) : null; } catch { return null; }
}
