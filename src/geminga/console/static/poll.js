// Polling: paused while the page is hidden, less often while the broker does not answer.

const SLOW_MS_MAX = 15000;

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
