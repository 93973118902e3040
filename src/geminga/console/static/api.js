// Requests to admin REST, with the user's token, once or repeatedly. The token is kept only in a variable of this
// module.

let token = null;
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

export async function call(method, path, { query, body, signal } = {}) {
  for (;;) {
    const used = token;
    const answer = await send(method, path, query, body, signal);
    if (answer.status !== 401) return result(answer);
    const { reason } = await told(answer);
    if (token === used) {
      token = null;
      if (declined) throw new ApiError(401, reason);
      asking ??= askForToken(used === null ? "" : reason).finally(() => (asking = null));
      token = await asking;
      declined = token === null;
      if (declined) throw new ApiError(401, reason);
    }
  }
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, query, body) => call("POST", path, { query, body });

async function send(method, path, query, body, signal) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") words.set(name, value);
  }
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const address = words.size ? `${path}?${words}` : path;
  try {
    return await fetch(address, {
      method, headers, signal, body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
      cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the broker does not answer");
  }
}

async function result(answer) {
  if (!answer.ok) {
    const { reason } = await told(answer);
    throw new ApiError(answer.status, reason);
  }
  const text = await answer.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

async function told(answer) {
  const text = await answer.text();
  try {
    const { reason } = JSON.parse(text);
    if (typeof reason === "string") return { reason };
  } catch { /* not ours */ }
  return { reason: `${answer.status} ${answer.statusText}` };
}

const SLOW_MS_MAX = 15000;

// Polls: pauses while the page is hidden, and polls less often while the broker does not answer.
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
