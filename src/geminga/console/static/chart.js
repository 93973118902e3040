// A few lines over time in one chart: the broker's samples of the last hour, and those since the page opened.

import { fill, h } from "./dom.js";
import { rate } from "./format.js";

const SAMPLES = 420;
const [HEIGHT, LEFT, TOP, BOTTOM] = [180, 64, 8, 24];
const X_STEPS = [10, 30, 60, 300, 600, 900, 1800, 3600];
const X_LABEL = 76;

export class Chart {
  // `lines`: [name, colour] each, colours as in the style sheet; `format` for the values.
  constructor(lines, format = rate) {
    this.lines = lines;
    this.format = format;
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
    const ticks = valueTicks(Math.max(...this.values.flat(), 0));
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

// Three or four round values from 0 to above `most`.
function valueTicks(most) {
  if (!(most > 0)) return [0, 1];
  const unit = 10 ** Math.floor(Math.log10(most / 3));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each * 4 >= most * 1.05) ?? 10 * unit;
  return Array.from({ length: Math.ceil((most * 1.05) / step) + 1 }, (_, at) => at * step);
}
