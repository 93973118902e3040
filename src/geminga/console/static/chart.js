// Rates over the last minutes: a few lines in one chart, sampled while the page is open.

import { h } from "./dom.js";
import { rate } from "./format.js";

const SAMPLES = 300;

export class Chart {
  // `lines`: [name, colour variable] each; `format` for the values.
  constructor(lines, format = rate) {
    this.lines = lines;
    this.format = format;
    this.data = [[], ...lines.map(() => [])];
    this.element = h("div", { class: "chart" });
    this.plot = null;
    this.again = () => this.draw(true);
    addEventListener("theme", this.again);
    this.watcher = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: 180 }));
    this.watcher.observe(this.element);
  }

  add(seconds, values) {
    this.data[0].push(seconds);
    values.forEach((value, at) => this.data[at + 1].push(value));
    if (this.data[0].length > SAMPLES) for (const column of this.data) column.shift();
    this.draw(false);
  }

  draw(anew) {
    if (this.plot && !anew) {
      this.plot.setData(this.data);
      this.newest();
      return;
    }
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    this.plot = new globalThis.uPlot({
      width: Math.max(200, this.element.clientWidth), height: 180,
      cursor: { points: { size: 7 }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { range: (_plot, low, high) => [Math.min(low, high - 60), high] }, y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.15)] } },
      axes: [{ ...axis, space: 90, values: (_plot, ticks) => ticks.map((each) => new Date(each * 1000).toTimeString().slice(0, 8)) },
        { ...axis, size: 62, values: (_plot, ticks) => ticks.map(this.format) }],
      series: [{ value: (_plot, value) => (value ? new Date(value * 1000).toTimeString().slice(0, 8) : "") },
        ...this.lines.map(([name, variable]) => ({
          label: name, stroke: colour(variable), width: 1.75, points: { show: false }, value: (_plot, value) => (value == null ? "" : this.format(value)),
        }))],
    }, this.data, this.element);
    this.newest();
  }

  // The legend shows the newest values, or those under the pointer.
  newest() {
    if (this.plot.cursor.idx == null && this.data[0].length) this.plot.setLegend({ idx: this.data[0].length - 1 });
  }

  stop() {
    removeEventListener("theme", this.again);
    this.watcher.disconnect();
    this.plot?.destroy();
  }
}
