// Requests to admin REST, once or repeatedly, with the user's token, which is kept only in a variable here.

// Where the paths of this page's cluster begin, if the console serves several.
export const BASE = /^\/cluster\/[^/]+/.exec(location.pathname)?.[0] ?? "";
// The root element has a token after a sign-in, and an empty one where it is possible.
const given = document.documentElement.dataset;
export const canSignIn = given.token !== undefined;
let token = given.token || null;
delete given.token;
const SHOWN = `shown${BASE}`;
const SIGNED_IN = `signed-in${BASE}`;
if (token) sessionStorage[SIGNED_IN] = "";
// After a reload the issuer may still know the person. It is tried once: the issuer may show a page of its own.
const silent = canSignIn && !token && sessionStorage[SIGNED_IN] !== undefined;
if (location.pathname.endsWith("/callback")) history.replaceState(null, "", `${BASE}/${sessionStorage[SHOWN] ?? ""}`);
let asking = null;
let declined = false; // the dialog was closed without a token: it stays closed until the user asks for it
let askForToken = async () => null;

class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// `ask(reason)` shows a dialog and resolves to a token, or null.
export function onUnauthorized(ask) {
  askForToken = ask;
}

export function askAgain() {
  declined = false;
}

export function signIn() {
  sessionStorage[SHOWN] = location.hash;
  delete sessionStorage[SIGNED_IN];
  // Back leads to this page, but not to begin a silent sign-in again.
  location[silent ? "replace" : "assign"](`${BASE}/console/login${silent ? "?silent" : ""}`);
}

export async function call(method, path, { query, body, signal } = {}) {
  for (;;) {
    const used = token;
    const answer = await send(method, path, query, body, signal);
    if (answer.ok) return content(answer);
    const reason = await told(answer);
    if (answer.status !== 401) throw new ApiError(answer.status, reason);
    if (silent) return (asking ??= new Promise(signIn)); // never settled: the page is left
    if (token === used) {
      token = null;
      if (!declined) {
        asking ??= askForToken(used === null ? given.problem : reason).finally(() => (asking = null));
        token = await asking;
        declined = token === null;
      }
      if (declined) throw new ApiError(401, reason);
    }
  }
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, query, body) => call("POST", path, { query, body });

async function send(method, path, query, body, signal) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if ((value ?? "") !== "") words.set(name, value);
  }
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(`${BASE}${path}${words.size ? "?" : ""}${words}`, {
      method, headers, signal, body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
      cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the broker does not answer");
  }
}

async function content(answer) {
  const text = await answer.text();
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return text;
  }
}

async function told(answer) {
  const text = await content(answer);
  const reason = text?.reason ?? text;
  // "<": a proxy's page
  return typeof reason === "string" && !reason.startsWith("<") ? reason : `${answer.status} ${answer.statusText}`;
}

const SLOW_MS_MAX = 15000;

// Polls, but not while the page is hidden, and less often while the broker does not answer.
export class Poller {
  // Calls `ask(signal)`, and again `every` milliseconds after its end. `told(error)` is called after each, with
  // null or the error.
  constructor(ask, every, told = () => {}) {
    this.ask = ask;
    this.every = every;
    this.told = told;
    this.failures = 0;
    this.timer = null;
    this.running = null;
    this.stopped = false;
    this.seen = () => {
      if (!document.hidden) this.now();
    };
    document.addEventListener("visibilitychange", this.seen);
    this.now();
  }

  async now() {
    if (this.stopped) return;
    clearTimeout(this.timer);
    this.running?.abort();
    const running = (this.running = new AbortController());
    try {
      await this.ask(running.signal);
      this.failures = 0;
      if (!running.signal.aborted) this.told(null);
    } catch (error) {
      if (error.name === "AbortError" || running.signal.aborted) return;
      this.failures++;
      this.told(error);
    }
    if (this.running !== running || this.stopped) return;
    this.running = null;
    if (document.hidden) return;
    this.timer = setTimeout(() => this.now(), Math.min(SLOW_MS_MAX, this.every * 2 ** Math.min(4, this.failures)));
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.running?.abort();
    document.removeEventListener("visibilitychange", this.seen);
  }
}
