// Functions and mirrors: what runs, its state, and how far it is behind.

import { get } from "./api.js";
import { pasted } from "./command.js";
import { fill, h, panel } from "./dom.js";
import { LEVELS, STATES, count, duration, perSecond, plural, sentence, subscriptionLink, topicName } from "./format.js";
import { opens } from "./list.js";

const EVERY_MS = 2000;
const ROWS = 200;
const TOPICS_SHOWN = 3;
const KINDS = [
  ["function", "Functions", "each one calls Python for the messages of its topics", "geminga function run module:callable --input my-topic"],
  ["mirror", "Mirrors", "each one copies topics of this cluster to another", "geminga mirror --from pulsar://here:6650 --to pulsar://there:6650 --name my-mirror"],
];

export function showRunning(frame) {
  frame.title("Functions and mirrors");
  const lists = KINDS.map(() => h("div"));
  const content = h("div", {}, KINDS.map(([, title, words], at) => panel(title, words, lists[at])));
  const head = h("div", { class: "head" }, h("h1", { tabIndex: -1 }, "Functions and mirrors"));
  const poller = frame.page(head, content, (signal) => Promise.all(KINDS.map(async ([kind, , , start], at) => {
    const found = await get("/admin/v2/geminga/subscriptions", { search: `is:${kind}`, limit: ROWS }, signal);
    const groups = new Map();
    for (const row of found.rows) groups.set(row.subscription, [...(groups.get(row.subscription) ?? []), row]);
    fill(lists[at], groups.size ? h("table", { class: "board" },
      h("thead", {}, h("tr", {}, ["Name", "Behind", "Oldest", "Instances", "Out"].map((each, nth) => h("th", { scope: "col", class: nth ? "" : "name" }, each)))),
      h("tbody", {}, [...groups].map(([name, rows]) => makeRow(kind, name, rows)))) : h("p", { class: "none" }, found.complete ? ["None. Start one: ", h("code", {}, pasted(start))] : "Loading …"),
    found.matching > found.rows.length ? h("p", { class: "none" }, `The ${count(found.rows.length)} in most trouble of ${count(found.matching)} topics.`) : null);
  })), EVERY_MS);
  return () => poller.stop();
}

// The rows of one function or mirror, those in most trouble first.
function makeRow(kind, name, rows) {
  const [worst] = rows;
  const sum = (field) => rows.reduce((all, row) => all + Math.max(0, row[field] ?? 0), 0);
  const behind = rows.every((row) => row.messages >= 0) ? plural(sum("messages"), "message") : plural(sum("entries"), "entry", "entries");
  const oldest = Math.max(...rows.map((row) => (row.entries ? row.oldestSeconds : -1)));
  const link = h("a", { class: "row", href: rows.length === 1 ? subscriptionLink(worst.topic, name) : `#/?${new URLSearchParams({ search: `is:${kind} ${name}` })}` },
    h("span", { class: "subscription" }, name.replace(/^geminga-mirror\./, "")));
  const cell = (title, words) => h("td", { class: "number", "data-title": title }, words);
  return opens(h("tr", { class: LEVELS[worst.trouble] }, h("td", { class: "name" }, h("div", {},
    h("span", { class: "dot", role: "img", "aria-label": STATES[worst.trouble] ?? "Nothing waits" }),
    h("div", {}, link, rows.slice(0, TOPICS_SHOWN).map((row) => h("span", { class: "topic" }, topicName(row.topic), " ")),
      rows.length > TOPICS_SHOWN ? h("span", { class: "topic" }, `and ${plural(rows.length - TOPICS_SHOWN, "more topic")}`) : null,
      h("p", { class: "sentence" }, sentence(worst.sentence))))),
  cell("Behind", behind), cell("Oldest", oldest >= 0 ? duration(oldest) : ""),
  cell("Instances", Math.max(...rows.map((row) => row.consumers)) || "none"), cell("Out", perSecond(sum("rateOut")))), link);
}
