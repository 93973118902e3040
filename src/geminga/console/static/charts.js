// Lines over time: samples of the broker, then of this page; and the map of acknowledgements: strips of the whole topic and
// of a range, down to single messages.

import { button, bytes, count, fill, h, plural } from "./dom.js";

const SAMPLES = 420;
const [HEIGHT, LEFT, TOP, BOTTOM] = [180, 64, 8, 24];
const X_STEPS = [10, 30, 60, 300, 600, 900, 1800, 3600];
const X_LABEL = 76;

export class Chart {
  // `lines`: [name, colour] each; `format` for the values, which are `binary` if bytes.
  constructor(lines, format, binary) {
    this.lines = lines;
    this.format = format;
    this.binary = binary;
    this.times = [];
    this.values = lines.map(() => []);
    this.svg = h("svg:svg", { height: HEIGHT, role: "img", "aria-label": "no samples yet" });
    this.legend = h("p", { class: "legend" });
    this.element = h("div", { class: "chart" }, this.svg, this.legend);
    this.at = null; // the sample under the pointer
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
    this.svg.addEventListener("pointermove", (event) => {
      this.at = this.nearest(event.offsetX);
      this.draw();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.at = null;
      this.draw();
    });
  }

  // Samples from before the page was opened: `of` names the history's fields.
  seed(history, of) {
    const number = history[of[0]].length;
    const end = (history.end + Date.now() - history.now) / 1000; // by the clock of this browser
    const first = end - (number - 1) * history.seconds;
    this.times.unshift(...Array.from({ length: number }, (_, at) => first + at * history.seconds));
    of.forEach((name, line) => this.values[line].unshift(...history[name]));
    this.draw();
  }

  add(seconds, values) {
    this.times.push(seconds);
    values.forEach((value, at) => this.values[at].push(value));
    if (this.times.length > SAMPLES) for (const column of [this.times, ...this.values]) column.shift();
    this.draw();
  }

  span() {
    const high = this.times.at(-1) ?? 0;
    return [Math.min(this.times[0] ?? 0, high - 60), high];
  }

  nearest(x) {
    const [low, high] = this.span();
    const moment = low + ((x - LEFT) / (this.element.clientWidth - LEFT)) * (high - low);
    let best = 0;
    this.times.forEach((each, at) => {
      if (Math.abs(each - moment) < Math.abs(this.times[best] - moment)) best = at;
    });
    return best;
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.times.length) return;
    const [low, high] = this.span();
    const ticks = valueTicks(Math.max(...this.values.flat(), 0), this.binary);
    const most = ticks.at(-1);
    const x = (moment) => LEFT + ((moment - low) / (high - low)) * (width - LEFT - 4);
    const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
    const step = X_STEPS.find((each) => (high - low) / each <= (width - LEFT) / X_LABEL) ?? 7200;
    const moments = [];
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) moments.push(at);
    const texts = ticks.map((each) => this.format(each));
    fill(this.svg,
      ticks.map((each, at) => [h("svg:line", { class: "grid", x1: LEFT, x2: width, y1: y(each), y2: y(each) }),
        texts.indexOf(texts[at]) === at ? h("svg:text", { x: LEFT - 8, y: y(each) + 4, "text-anchor": "end" }, texts[at]) : null]),
      moments.map((each) => h("svg:text", {
        x: Math.max(LEFT + 22, Math.min(width - 26, x(each))), y: HEIGHT - 6, "text-anchor": "middle",
      }, timeText(each, step < 60))),
      this.lines.map(([, colour], line) => h("svg:polyline", {
        class: colour, points: this.times.map((each, at) => `${x(each).toFixed(1)},${y(this.values[line][at]).toFixed(1)}`).join(" "),
      })),
      this.at === null ? null : h("svg:line", { class: "pointer", x1: x(this.times[this.at]), x2: x(this.times[this.at]), y1: TOP, y2: HEIGHT - BOTTOM }));
    this.svg.setAttribute("width", width);
    const at = this.at ?? this.times.length - 1;
    fill(this.legend, this.lines.map(([name, colour], line) => h("span", {}, h("i", { class: colour }), `${name} `, h("b", {}, this.format(this.values[line][at])))),
      h("span", { class: "when" }, this.at === null ? "now" : `at ${timeText(this.times[at], true)}`));
    this.svg.setAttribute("aria-label", this.lines.map(([name], line) => `${name}: ${this.format(this.values[line].at(-1))}`).join(", "));
  }

  stop() {
    this.watcher.disconnect();
  }
}

const timeText = (seconds, exact) => new Date(seconds * 1000).toTimeString().slice(0, exact ? 8 : 5);

// Three or four round values from 0 to above `most`; `binary` ones are multiples of a power of 2.
function valueTicks(most, binary) {
  if (!(most > 0)) return [0, 1];
  most *= 1.05;
  const unit = 10 ** Math.floor(Math.log10(most / 4));
  const step = binary ? 2 ** Math.max(0, Math.ceil(Math.log2(most / 4))) : [1, 2, 5, 10].map((each) => each * unit).find((each) => each * 4 >= most);
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, at) => at * step);
}

// --- the map: the server counts, this module paints; a cell of many entries shows even one unacknowledged message ---
const CELLS = 640;
const LINE_MIN = 3;

export class HoleMap {
  // `ask(from, to, cells)` resolves to a range; `chosen(entry)` is called with the selected entry.
  constructor(ask, chosen) {
    this.ask = ask;
    this.chosen = chosen;
    this.view = null; // null: the whole topic, also when it grows
    this.all = null;
    this.part = null;
    this.over = h("canvas", { class: "over", "aria-hidden": "true" });
    this.strip = h("canvas", {
      class: "strip", tabIndex: 0, role: "img", "aria-label": "Map of acknowledgements",
    });
    this.left = h("span");
    this.middle = h("span");
    this.right = h("span");
    this.what = h("span", { class: "what" });
    const tool = (title, words, act) => button(words, act, { title });
    this.element = h("div", { class: "map" },
      h("div", { class: "tools" },
        tool("Whole topic (0)", "All", () => this.zoom(null)),
        tool("To the oldest unacknowledged message", "Oldest unacknowledged", () => this.toOldest()),
        tool("Zoom in (+)", "Zoom in", () => this.scale(0.25)),
        tool("Zoom out (−)", "Zoom out", () => this.scale(4)),
        this.what),
      this.over, this.strip,
      h("div", { class: "axis" }, this.left, this.middle, this.right),
      h("div", { class: "legend" },
        [["acked", "acknowledged"], ["open", "delivered, unacknowledged"], ["partly", "batch acknowledged in part"], ["unread", "not delivered yet"],
          ["again", "to be redelivered"], ["delayed", "delayed"], ["damaged", "damaged"]].map(([kind, words]) => h("span", {}, h("i", { class: kind }), words))));
    this.listen();
    this.repaint = () => this.paint();
    addEventListener("theme", this.repaint);
    this.watcher = new ResizeObserver(this.repaint);
    this.watcher.observe(this.strip);
  }

  stop() {
    removeEventListener("theme", this.repaint);
    this.watcher.disconnect();
  }

  async refresh() {
    const all = await this.ask(null, null, CELLS);
    this.all = all;
    this.part = this.view === null ? all : await this.ask(this.view[0], this.view[1], CELLS);
    this.paint();
  }

  zoom(view) {
    if (view !== null && this.all) {
      const { first, end } = this.all;
      const width = Math.min(Math.max(8, Math.round(view[1] - view[0])), Math.max(1, end - first));
      const from = Math.min(Math.max(first, Math.round(view[0])), end - width);
      view = width >= end - first ? null : [from, from + width];
    }
    this.view = view;
    this.refresh().catch(() => {}); // the page's polling shows the error
  }

  // The range requested last; its response may be pending.
  get stretch() {
    return this.view ?? [this.all.first, this.all.end];
  }

  scale(by, around) {
    if (!this.all) return;
    const [from, to] = this.stretch;
    const middle = around ?? (from + to) / 2;
    const width = (to - from) * by;
    const share = (middle - from) / Math.max(1, to - from);
    this.zoom([middle - width * share, middle + width * (1 - share)]);
  }

  toOldest() {
    if (!this.all) return;
    const width = Math.min(200, this.all.end - this.all.first);
    this.zoom([this.all.mark - width / 8, this.all.mark + (width * 7) / 8]);
  }

  listen() {
    const { strip, over } = this;
    strip.addEventListener("wheel", (event) => {
      if (!this.part) return;
      event.preventDefault();
      this.scale(event.deltaY > 0 ? 2 : 0.5, this.offsetAt(strip, event, this.part));
    }, { passive: false });
    strip.addEventListener("keydown", (event) => {
      if (!this.all) return;
      const [from, to] = this.stretch;
      const by = Math.max(1, (to - from) / 4);
      const acts = {
        "+": () => this.scale(0.5), "=": () => this.scale(0.5), "-": () => this.scale(2), 0: () => this.zoom(null),
        ArrowLeft: () => this.zoom([from - by, to - by]), ArrowRight: () => this.zoom([from + by, to + by]),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
    strip.addEventListener("click", (event) => {
      if (!this.part) return;
      const at = this.offsetAt(strip, event, this.part);
      const entry = this.part.entries?.find((each) => each.offset === Math.floor(at));
      if (entry) this.chosen(entry);
      else this.scale(0.2, at);
    });
    strip.addEventListener("mousemove", (event) => this.point(event));
    strip.addEventListener("mouseleave", () => this.describe());
    let from = null;
    over.addEventListener("pointerdown", (event) => {
      if (!this.all) return;
      from = this.offsetAt(over, event, this.all);
      over.setPointerCapture(event.pointerId);
    });
    over.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = this.offsetAt(over, event, this.all);
      const width = this.part ? this.part.to - this.part.from : 200;
      const wide = Math.abs(to - from) > (this.all.end - this.all.first) / 200;
      this.zoom(wide ? [Math.min(from, to), Math.max(from, to)] : [to - width / 2, to + width / 2]);
      from = null;
    });
  }

  offsetAt(canvas, event, stretch) {
    const box = canvas.getBoundingClientRect();
    return stretch.from + ((event.clientX - box.left) / box.width) * (stretch.to - stretch.from);
  }

  point(event) {
    const { part } = this;
    if (!part || part.to <= part.from) return;
    const offset = Math.floor(this.offsetAt(this.strip, event, part));
    const entry = part.entries?.find((each) => each.offset === offset);
    if (entry) this.what.textContent = entryWords(entry);
    else if (part.acknowledged) {
      const cell = Math.floor((offset - part.from) / part.width);
      const entries = Math.min(part.width, part.to - part.from - cell * part.width);
      const done = part.acknowledged[cell] ?? 0;
      this.what.textContent = `${plural(entries, "entry")}: ${count(done)} acknowledged, ${count(entries - done)} open`;
    }
  }

  describe() {
    const { all, part } = this;
    if (!all) return;
    const words = all.end === all.first ? "nothing is kept"
      : `${plural(all.holes, "hole")}, ${plural(all.acknowledgedBehindMark, "entry")} acknowledged behind the oldest open one`;
    this.what.textContent = words;
    this.strip.setAttribute("aria-label", `Map of acknowledgements, ${count(part.to - part.from)} of ${count(all.end - all.first)} entries: ${words}`);
    const ledger = (offset) => {
      const found = part.ledgers.findLast((each) => each.first <= offset);
      return found ? `${found.ledgerId}:${Math.max(0, Math.min(offset - found.first, found.entries - 1))}` : "";
    };
    this.left.textContent = ledger(part.from);
    this.right.textContent = ledger(part.to - 1);
    this.middle.textContent = plural(part.to - part.from, "entry") +
      (all.ledgerCount > 1 ? ` in ${count(part.ledgers.length)} of ${count(all.ledgerCount)} ledgers` : "");
  }

  paint() {
    if (!this.all || !this.part) return;
    const style = getComputedStyle(this.strip);
    const colours = Object.fromEntries(
      ["acked", "open", "unread", "partly", "damaged", "delayed", "again", "ink", "accent", "line", "panel"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    paintStretch(this.over, this.all, colours);
    const over = this.over.getContext("2d");
    const { first, end } = this.all;
    if (this.view !== null && end > first) {
      const { width, height } = this.over;
      const left = ((this.part.from - first) / (end - first)) * width;
      const right = ((this.part.to - first) / (end - first)) * width;
      over.globalAlpha = 0.55;
      over.fillStyle = colours.panel;
      over.fillRect(0, 0, left, height);
      over.fillRect(right, 0, width - right, height);
      over.globalAlpha = 1;
      over.strokeStyle = colours.accent;
      over.lineWidth = 2 * devicePixelRatio;
      over.strokeRect(left + 1, 1, Math.max(3, right - left - 2), height - 2);
    }
    paintStretch(this.strip, this.part, colours);
    this.describe();
  }
}

function paintStretch(canvas, stretch, colours) {
  const scale = devicePixelRatio;
  const width = (canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale)));
  const height = (canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale)));
  const paint = canvas.getContext("2d");
  paint.fillStyle = colours.unread;
  paint.fillRect(0, 0, width, height);
  const entries = stretch.to - stretch.from;
  if (entries <= 0) return;
  const x = (offset) => ((offset - stretch.from) / entries) * width;
  if (stretch.entries) paintEntries(paint, stretch, colours, x, height, scale);
  else paintCells(paint, stretch, colours, x, height, scale);
  for (const [from, to] of stretch.damaged) {
    paint.fillStyle = colours.damaged;
    paint.fillRect(x(from), 0, Math.max(LINE_MIN * scale, x(to) - x(from)), height);
  }
  paint.fillStyle = colours.panel;
  if (stretch.ledgers.length < 120) {
    for (const { first } of stretch.ledgers) if (first > stretch.from) paint.fillRect(x(first) - scale / 2, 0, scale, height);
  }
}

function paintCells(paint, stretch, colours, x, height, scale) {
  const { width: entries, acknowledged, partly, from, to, read } = stretch;
  acknowledged.forEach((done, cell) => {
    const low = from + cell * entries;
    const high = Math.min(to, low + entries);
    const left = x(low);
    const wide = Math.max(1, x(high) - left + 0.5);
    if (done) {
      paint.fillStyle = colours.acked;
      paint.fillRect(left, 0, wide, height);
    }
    const open = high - low - done;
    if (!open) return;
    // Among delivered entries, even one unacknowledged entry in a million is visible.
    const delivered = Math.max(0, Math.min(read, high) - low - done);
    if (delivered > 0) {
      const tall = Math.max(height * 0.14, LINE_MIN * scale, (delivered / (high - low)) * height);
      paint.fillStyle = colours.open;
      paint.fillRect(left, height - tall, wide, tall);
    } else if (done) {
      const tall = (open / (high - low)) * height;
      paint.fillStyle = colours.unread;
      paint.fillRect(left, 0, wide, tall);
    }
    if (partly[cell]) {
      paint.fillStyle = colours.partly;
      paint.fillRect(left, height - Math.max(height * 0.07, LINE_MIN * scale), wide, height);
    }
  });
}

function paintEntries(paint, stretch, colours, x, height, scale) {
  for (const entry of stretch.entries) {
    const left = x(entry.offset);
    const gap = x(entry.offset + 1) - left > 5 * scale ? scale : 0;
    const wide = Math.max(0.5, x(entry.offset + 1) - left - gap);
    const open = entry.delayed ? colours.delayed : entry.again ? colours.again : entry.ahead ? colours.unread
      : entry.consumer || entry.sent || entry.redeliveries || entry.offset < stretch.read ? colours.open : colours.unread;
    if (entry.state === "acknowledged" || entry.state === "partly") paint.fillStyle = colours.acked;
    else paint.fillStyle = entry.state === "damaged" ? colours.damaged : open;
    paint.fillRect(left, 0, wide, height);
    if (entry.state === "partly") {
      const each = height / Math.max(1, entry.messages);
      paint.fillStyle = open === colours.unread ? colours.partly : open;
      for (const [first, last] of entry.open) {
        paint.fillRect(left, first * each, wide, Math.max(LINE_MIN * scale / 2, (last - first + 1) * each - (each > 6 * scale ? scale : 0)));
      }
    }
  }
}

function entryWords(entry) {
  const words = [`${entry.id || "a gap"}: ${entry.state === "partly" ? "acknowledged in part" : entry.state}`];
  if (entry.messages > 1) words.push(`${entry.messages} messages`);
  if (entry.open) words.push(`open ${entry.open.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ")}`);
  if (entry.bytes > 0) words.push(bytes(entry.bytes));
  if (entry.consumer) words.push(`held by ${entry.consumer}`);
  if (entry.delayed) words.push("to be delivered later");
  if (entry.again) words.push("to be redelivered");
  if (entry.ahead) words.push("waits for its consumer");
  if (entry.redeliveries) words.push(`redelivered ${entry.redeliveries} times`);
  return words.join(" · ");
}

export function chosenEntry(box, entry, actions) {
  if (!entry) return fill(box);
  return fill(box, h("div", { class: "chosen" }, h("span", {}, entryWords(entry)), actions));
}
