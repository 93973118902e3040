// Sparkline of a few dozen samples.

import { h } from "./dom.js";

const [WIDTH, HEIGHT] = [72, 20];

export function sparkline() {
  const line = h("svg:polyline", { fill: "none" });
  const element = h("svg:svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true",
  }, line);
  return {
    element,
    draw(samples) {
      const top = Math.max(...samples);
      const bottom = Math.min(...samples);
      const flat = top === bottom;
      element.classList.toggle("flat", flat);
      const step = WIDTH / Math.max(1, samples.length - 1);
      line.setAttribute("points", samples.length < 2 || (flat && !top) ? "" : samples.map((value, at) => {
        const y = flat ? HEIGHT / 2 : HEIGHT - 2 - ((value - bottom) / (top - bottom)) * (HEIGHT - 4);
        return `${(at * step).toFixed(1)},${y.toFixed(1)}`;
      }).join(" "));
    },
  };
}
