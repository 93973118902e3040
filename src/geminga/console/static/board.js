// The first page: all subscriptions, the most urgent first, each with a sentence about its state.

import { get } from "./api.js";
import { pasted } from "./command.js";
import { fill, h, text } from "./dom.js";
import { LEVELS, STATES, count, duration, plural, rate, sentence, sentenceText, subscriptionLink, topicLink, topicName, topicsLink } from "./format.js";
import { List, opens } from "./list.js";

const SAMPLES = 60;
const TOPICS_SHOWN = 5;
const COLUMNS = [
  ["name", "Subscription", "", "name"],
  ["backlog", "Backlog", "unacknowledged messages, and their entries", "backlog"],
  ["oldest", "Oldest", "publish time of the oldest unacknowledged message", null],
  ["trend", "Trend", "backlog of the last hour", null],
  ["unacked", "Unacked", "messages delivered and not acknowledged", "unacked"],
  ["in", "In", "messages per second published to the topic", "in"],
  ["out", "Out", "messages per second delivered", "out"],
  ["consumers", "Consumers", "", "consumers"],
];

export function showBoard(frame, query) {
  frame.title("");
  const headline = h("h1", { "aria-live": "polite", tabIndex: -1 }, "…");
  const subline = h("p", { class: "subline" }, "…");
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show" });
  const topics = h("p", { class: "also", role: "status" });
  const history = new Map();
  const list = new List(frame, query, {
    base: "#/", path: "/admin/v2/geminga/subscriptions", columns: COLUMNS, order: "trouble",
    key: (row) => `${row.topic}\n${row.subscription}`,
    makeRow: (row) => makeRow(row, (now) => remember(history, now)),
    show: (found, state) => summary(found, state),
    more: (_found, state, signal) => findTopics(state, signal),
    empty,
    told(error) {
      frame.told(error);
      if (error) text(headline, sentenceText(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`));
    },
  });
  fill(frame.main,
    h("section", { class: "summary" }, headline, subline, chips), topics, list.table, list.blank, list.pager);
  list.begin();

  // A search answers topics, too: also those without a subscription.
  async function findTopics({ search }, signal) {
    if (!search) return void fill(topics);
    const found = await get("/admin/v2/geminga/topics", { search, limit: TOPICS_SHOWN }, signal);
    const more = found.matching - found.rows.length;
    fill(topics, found.rows.length ? [`${plural(found.matching, "topic")}: `,
      found.rows.map((row, at) => [at ? ", " : "", h("a", { class: "topic", href: topicLink(row.topic) }, topicName(row.topic))]),
      more > 0 ? [" … ", h("a", { class: "link", href: topicsLink({ search }) }, `all ${count(found.matching)} topics`)] : null] : null);
  }

  function empty(found, state) {
    if (!found.complete) return h("p", {}, "Loading all subscriptions …");
    if (state.search || state.level) return h("p", {}, "No subscription matches.");
    return [h("p", {}, "There is no subscription yet."), h("p", {}, "Publish and receive something: "),
      h("pre", { tabIndex: 0 }, `${pasted("geminga produce my-topic hello")}\n${pasted("geminga consume my-topic -s my-subscription")}`)];
  }

  function summary(found, state) {
    const { totals } = found;
    if (!totals) {
      text(headline, `${count(found.matching)} subscriptions that you may see`);
      text(subline, "");
      return;
    }
    const [, idle, moving, watch, stopped, growing, blocking] = totals.levels;
    const parts = [];
    const still = stopped + growing;
    if (blocking) parts.push(`${count(blocking)} ${blocking === 1 ? "stops" : "stop"} producers`);
    if (still) parts.push(`${count(still)} ${still === 1 ? "is" : "are"} stopped`);
    if (watch) parts.push(`${count(watch)} ${watch === 1 ? "is" : "are"} worth a look`);
    const calm = totals.subscriptions ? "Everything moves." : "Nothing to see yet.";
    text(headline, !found.complete && !found.rows.length ? "Looking …" : parts.length ? `${parts.join(", ")}.` : calm);
    text(subline, plural(totals.subscriptions, "subscription") +
      (state.search ? ` like “${state.search}”` : "") +
      ` · ${rate(totals.msgRateIn)} messages/s in · ${rate(totals.msgRateOut)}/s out` +
      (totals.leftOut ? ` · ${count(totals.leftOut)} less urgent ones are not shown: search for them` : "") +
      (found.complete ? "" : " · still loading"));
    const levels = [["", totals.subscriptions], ["6", blocking], ["5", growing], ["4", stopped], ["3", watch], ["2", moving], ["1", idle]];
    const said = JSON.stringify([levels, state.level]);
    if (chips.said === said) return;
    chips.said = said;
    fill(chips, levels.filter(([level, number]) => number || !level || level === state.level).map(([level, number]) =>
      h("button", {
        type: "button", class: `chip ${LEVELS[level] ?? "all"}`, "aria-pressed": String(state.level === level),
        onclick: () => list.go({ level, page: 0 }),
      }, STATES[level] ?? "All", h("b", {}, count(number)))));
  }

  return list.life();
}

// The broker's samples of the last hour, followed by those of this page.
function remember(history, row) {
  const key = `${row.topic}\n${row.subscription}`;
  const samples = history.get(key) ?? [...(row.history ?? [])];
  history.delete(key);
  history.set(key, samples);
  samples.push(row.messages >= 0 ? row.messages : row.entries);
  if (samples.length > SAMPLES) samples.shift();
  if (history.size > 400) history.delete(history.keys().next().value);
  return samples;
}

function makeRow(row, samplesOf) {
  const cell = (name) => h("td", { class: `number ${name}`, "data-title": COLUMNS.find(([each]) => each === name)[1] });
  const dot = h("span", { class: "dot", role: "img" });
  const words = h("p", { class: "sentence" });
  const place = h("span", { class: "topic" });
  const link = h("a", { class: "row", href: subscriptionLink(row.topic, row.subscription) },
    h("span", { class: "subscription" }, row.subscription), place);
  const cells = Object.fromEntries(COLUMNS.slice(1).map(([name]) => [name, cell(name)]));
  const line = sparkline();
  const growth = h("span", { class: "growth" });
  cells.trend.append(line.element, growth);
  const [messages, entries] = [h("b", {}), h("small", {})];
  cells.backlog.append(messages, entries);
  const kind = row.runs || (row.subscription === "geminga-redrive" ? "dead letters sent back" : "");
  fill(place, topicName(row.topic), row.partitions ? ` · ${plural(row.partitions, "partition")}` : null, kind ? h("span", { class: "tag" }, kind) : null);
  const element = opens(h("tr", {}, h("td", { class: "name" }, h("div", {}, dot, h("div", {}, link, words))), Object.values(cells)), link);
  let said = "";
  element.update = (now) => {
    element.className = LEVELS[now.trouble];
    dot.setAttribute("aria-label", STATES[now.trouble] ?? "Nothing waits");
    if (said !== now.sentence) fill(words, sentence((said = now.sentence)));
    const known = now.messages >= 0;
    text(messages, known ? count(now.messages) : "");
    text(entries, now.entries && (!known || now.entries !== now.messages)
      ? plural(now.entries, "entry", "entries") : "");
    text(cells.oldest, now.oldestSeconds >= 0 && now.entries ? duration(now.oldestSeconds) : "");
    text(growth, growthOf(now));
    growth.className = `growth ${now.growth > 0.5 ? "up" : now.growth < -0.5 ? "down" : ""}`;
    line.draw(samplesOf(now));
    text(cells.unacked, now.unacked ? count(now.unacked) : "");
    text(cells.in, now.awake ? rate(now.rateIn) : "");
    text(cells.out, now.awake ? rate(now.rateOut) : "");
    text(cells.consumers, now.consumers ? `${count(now.consumers)}${now.type ? ` ${now.type}` : ""}` : "none");
  };
  return element;
}

function growthOf(row) {
  if (row.growth === null || Math.abs(row.growth) < 0.05) return "";
  return `${row.growth > 0 ? "+" : "−"}${rate(Math.abs(row.growth))}/s`;
}

// A sparkline of a few dozen samples.
const [WIDTH, HEIGHT] = [72, 20];

function sparkline() {
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
