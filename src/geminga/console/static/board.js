// The first page: all subscriptions, the most urgent first, each with a sentence about its state; and the page of
// those that are functions and mirrors.

import { get } from "./api.js";
import { pasted } from "./command.js";
import { fill, h, keyed, panel, text } from "./dom.js";
import { LEVELS, STATES, count, duration, perSecond, plural, rate, sentence, sentenceText, subscriptionLink, topicLink, topicName, topicsLink } from "./format.js";
import { List, opens } from "./list.js";

const SAMPLES = 60;
const TOPICS_SHOWN = 5;
const TOPICS_NAMED = 3;
const EVERY_MS = 2000;
const ROWS = 200;
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

// --- functions and mirrors: what runs, its state, and how far it is behind ---
const KINDS = [
  ["function", "Functions", "each one calls Python for the messages of its topics", "geminga function run module:callable --input my-topic"],
  ["mirror", "Mirrors", "each one copies topics of this cluster to another", "geminga mirror --from pulsar://here:6650 --to pulsar://there:6650 --name my-mirror"],
];

export function showRunning(frame) {
  frame.title("Functions and mirrors");
  const lists = KINDS.map(([kind, title, words, start]) => {
    const body = h("tbody");
    const none = h("p", { class: "none" });
    const table = h("table", { class: "board" }, h("thead", {}, h("tr", {}, ["Name", "Behind", "Oldest", "Instances", "Out"].map((each, at) => h("th", { scope: "col", class: at ? "" : "name" }, each)))), body);
    return { kind, body, none, table, start, element: panel(title, words, table, none) };
  });
  const head = h("div", { class: "head" }, h("h1", { tabIndex: -1 }, "Functions and mirrors"));
  const content = h("div", {}, lists.map((each) => each.element));
  const poller = frame.page(head, content, (signal) => Promise.all(lists.map(async ({ kind, body, none, table, start }) => {
    const found = await get("/admin/v2/geminga/subscriptions", { search: `is:${kind}`, limit: ROWS }, signal);
    const groups = new Map();
    for (const row of found.rows) groups.set(row.subscription, [...(groups.get(row.subscription) ?? []), row]);
    keyed(body, [...groups], ([name]) => name, ([name]) => runningRow(kind, name), (row, [, rows]) => row.update(rows));
    table.hidden = !groups.size;
    fill(none, groups.size ? "" : found.complete ? ["None. Start one: ", h("code", {}, pasted(start))] : "Loading …",
      found.matching > found.rows.length ? `The ${count(found.rows.length)} topics in most trouble, of ${count(found.matching)}.` : "");
  })), EVERY_MS);
  return () => poller.stop();
}

// One function or mirror; `update` gets its rows, those in most trouble first.
function runningRow(kind, name) {
  const dot = h("span", { class: "dot", role: "img" });
  const link = h("a", { class: "row" }, h("span", { class: "subscription" }, name.replace(/^geminga-mirror\./, "")));
  const topics = h("span");
  const words = h("p", { class: "sentence" });
  const cells = ["Behind", "Oldest", "Instances", "Out"].map((title) => h("td", { class: "number", "data-title": title }));
  const element = opens(h("tr", {}, h("td", { class: "name" }, h("div", {}, dot, h("div", {}, link, topics, words))), cells), link);
  element.update = (rows) => {
    const [worst] = rows;
    const sum = (field) => rows.reduce((all, row) => all + Math.max(0, row[field] ?? 0), 0);
    const more = rows.length - TOPICS_NAMED;
    element.className = LEVELS[worst.trouble];
    dot.setAttribute("aria-label", STATES[worst.trouble] ?? "Nothing waits");
    link.setAttribute("href", rows.length === 1 ? subscriptionLink(worst.topic, name) : `#/?${new URLSearchParams({ search: `is:${kind} ${name}` })}`);
    fill(topics, rows.slice(0, TOPICS_NAMED).map((row) => h("span", { class: "topic" }, topicName(row.topic), " ")), more > 0 ? h("span", { class: "topic" }, `and ${plural(more, "more topic")}`) : null);
    fill(words, sentence(worst.sentence));
    const oldest = Math.max(...rows.map((row) => (row.entries ? row.oldestSeconds : -1)));
    const shown = [rows.every((row) => row.messages >= 0) ? plural(sum("messages"), "message") : plural(sum("entries"), "entry", "entries"),
      oldest >= 0 ? duration(oldest) : "", Math.max(...rows.map((row) => row.consumers)) || "none", perSecond(sum("rateOut"))];
    cells.forEach((cell, at) => text(cell, shown[at]));
  };
  return element;
}
