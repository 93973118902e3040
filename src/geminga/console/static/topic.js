// One topic: producers and their batches, storage, schema, policies, and the newest messages.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { fill, h, keyed, text } from "./dom.js";
import { bytes, count, duration, rate, sentence, subscriptionLink, topicName, topicPath, topicLink } from "./format.js";
import { SchemaBook, messageItem } from "./messages.js";
import { Poller } from "./poll.js";

const EVERY_MS = 2000;
const TAIL_MS = 1000;
const AGAIN_MS = 150;
const TAIL_SHOWN = 100;
const LEDGERS_SHOWN = 8;
const POLICIES = [
  ["retention", "Retention"], ["messageTTL", "Time to live (s)"], ["backlogQuotaMap", "Backlog quotas"],
  ["maxUnackedMessagesOnConsumer", "Unacknowledged, a consumer"], ["maxUnackedMessagesOnSubscription", "Unacknowledged, a subscription"],
  ["deduplicationEnabled", "Deduplication"], ["delayedDelivery", "Delayed delivery"], ["compactionThreshold", "Compaction from"],
  ["publishRate", "Publish rate"], ["dispatchRate", "Dispatch rate"],
];

export function showTopic(frame, topic, query) {
  frame.title(topic.split("/").at(-1));
  const path = topicPath(topic);
  const book = new SchemaBook(topic);
  const facts = h("dl", { class: "facts" });
  const chart = new Chart([["in", "accent"], ["out", "moving"]], (value) => `${rate(value)}/s`);
  const producers = h("tbody");
  const nobody = h("p", { class: "none" }, "No producer is connected.");
  const word = h("p", { class: "sentence" });
  const subscriptions = h("tbody");
  const schema = h("div", {}, "…");
  const policies = h("dl", { class: "pairs" });
  const ledgers = h("tbody");
  const parts = h("section", { class: "panel", hidden: true });
  const tail = new Tail(topic, book, frame);
  const table = (titles, body) => h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, titles.map((each) => h("th", { scope: "col" }, each)))), body));
  const panel = (title, small, ...content) => h("section", { class: "panel" }, h("h2", {}, title, small ? h("small", {}, small) : null), content);
  const whole = h("div", {},
    facts,
    panel("Messages per second", "while this page is open", chart.element),
    panel("Producers", "", word, nobody, table(["Producer", "In", "Message size", "Messages per entry", "Since"], producers)),
    panel("Subscriptions", "", table(["Subscription", "Backlog", "Unacknowledged", "Out", "Consumers"], subscriptions)),
    tail.element,
    h("div", { class: "columns" }, panel("Schema", "", schema), panel("Effective policies", "of the topic, its namespace and the broker", policies)),
    panel("Ledgers", "the newest first", table(["Ledger", "Entries", "Bytes"], ledgers)));
  const problem = h("p", { class: "refused", role: "alert", hidden: true });
  const content = h("div", {}, parts, whole);
  fill(frame.main, h("div", { class: "head" }, h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Subscriptions"), " / ", topicName(topic).slice(0, -1)),
    h("h1", {}, topicName(topic).at(-1)))), problem, content);
  let turn = 0;

  const poller = new Poller(async (signal) => {
    if (turn === 0) {
      const { partitions } = (await get(`${path}/partitions`, {}, signal)) ?? {};
      if (partitions > 0) {
        await showPartitions(partitions, signal);
        return;
      }
    }
    const stats = await get(`${path}/stats`, {}, signal);
    if (turn === 0) tail.start();
    show(stats);
    if (turn++ % 5 === 0) await showSlow(stats, signal);
  }, EVERY_MS, frame.toldInstead(content, problem));

  async function showPartitions(partitions, signal) {
    whole.hidden = true;
    parts.hidden = false;
    const stats = await get(`${path}/partitioned-stats`, { perPartition: true }, signal);
    const rows = Object.entries(stats.partitions ?? {}).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
    const items = rows.map(([name, each]) => h("tr", {}, h("td", {}, h("a", { class: "row", href: topicLink(name) }, name.split("/").at(-1))),
      h("td", {}, `${rate(each.msgRateIn)}/s`), h("td", {}, `${rate(each.msgRateOut)}/s`),
      h("td", {}, count(Object.values(each.subscriptions).reduce((sum, one) => sum + (one.messagesInBacklog ?? one.msgBacklog), 0))),
      h("td", {}, bytes(each.storageSize))));
    fill(parts, h("h2", {}, `${partitions} partitions`), table(["Partition", "In", "Out", "Backlog", "Stored"], h("tbody", {}, items)));
  }

  function show(stats) {
    const own = Object.entries(stats.subscriptions);
    const fact = (title, value, small) => h("div", {}, h("dt", {}, title), h("dd", {}, value, small ? h("small", {}, small) : null));
    fill(facts,
      fact("In", `${rate(stats.msgRateIn)}/s`, `${bytes(stats.msgThroughputIn)}/s`),
      fact("Out", `${rate(stats.msgRateOut)}/s`, `${bytes(stats.msgThroughputOut)}/s`),
      fact("A message", bytes(stats.averageMsgSize)),
      fact("Stored", bytes(stats.storageSize)),
      fact("Producers", count(stats.publishers.length), stats.waitingPublishers ? `${stats.waitingPublishers} wait` : ""),
      fact("Subscriptions", count(own.length)),
      fact("Published", count(stats.msgInCounter), "since it was loaded"));
    chart.add(Date.now() / 1000, [stats.msgRateIn, stats.msgRateOut]);
    nobody.hidden = stats.publishers.length > 0;
    producers.closest("table").hidden = !stats.publishers.length;
    if (stats.backlogQuotaExceeded) {
      nobody.hidden = false;
      fill(nobody, h("span", { class: "refused" }, "Producers are stopped: ", sentence(stats.backlogQuotaExceeded)));
    } else text(nobody, "No producer is connected.");
    keyed(producers, stats.publishers.slice(0, 100), (each) => `${each.producerName} ${each.producerId} ${each.address}`, () => {
      const row = h("tr", {}, Array.from({ length: 5 }, () => h("td")));
      return row;
    }, (row, each) => {
      const [name, rates, size, filled, since] = row.cells;
      if (!name.textContent) {
        fill(name, h("b", {}, each.producerName), h("small", {}, `${each.address} · ${each.clientVersion || "unknown client"}${each.accessMode === "Shared" ? "" : ` · ${each.accessMode}`}`));
        fill(since, sentence(each.connectedSince ?? ""));
      }
      text(rates, `${rate(each.msgRateIn)}/s`);
      text(size, bytes(each.averageMsgSize));
      text(filled, each.messagesPerEntry ? each.messagesPerEntry.toFixed(each.messagesPerEntry < 10 ? 1 : 0) : "·");
    });
    keyed(subscriptions, own.slice(0, 200), ([name]) => name, ([name]) => h("tr", {},
      h("td", {}, h("a", { class: "row", href: subscriptionLink(topic, name) }, name)), Array.from({ length: 4 }, () => h("td"))), (row, [, each]) => {
      const cells = row.cells;
      text(cells[1], count(each.messagesInBacklog ?? each.msgBacklog));
      text(cells[2], each.unackedMessages ? count(each.unackedMessages) : "");
      text(cells[3], `${rate(each.msgRateOut)}/s`);
      text(cells[4], each.consumers.length ? `${each.consumers.length} ${each.type ?? ""}` : "none");
    });
  }

  async function showSlow(stats, signal) {
    const nothing = () => null;
    const [inside, found, advice] = await Promise.all([
      get(`${path}/internalStats`, {}, signal).catch(nothing), book.newest(), advise(stats, signal).catch(nothing),
    ]);
    if (inside) {
      const newest = inside.ledgers.slice(-LEDGERS_SHOWN).reverse();
      fill(ledgers, newest.map((each) => h("tr", {}, h("td", { class: "mono" }, each.ledgerId), h("td", {}, count(each.entries)), h("td", {}, bytes(each.size)))),
        inside.ledgers.length > newest.length ? h("tr", {}, h("td", { colspan: 3, class: "none" }, `and ${count(inside.ledgers.length - newest.length)} older ones`)) : null);
    }
    if (found) {
      fill(schema, h("p", {}, h("span", { class: "tag" }, found.type), ` version ${found.version ?? 0}`), h("br"), definition(found.data));
    } else fill(schema, h("p", { class: "none" }, "None: messages are bytes."));
    showAdvice(advice);
    if (turn <= 1) await showPolicies(signal);
  }

  function showAdvice(advice) {
    if (!advice || advice.verdict === "quiet") return fill(word);
    const good = advice.verdict === "good";
    fill(word, h("span", { class: `tag ${good ? "good" : "warn"}` }, good ? "batches are as full as they can be" : "batches could be fuller"), " ",
      `${advice.text.charAt(0).toUpperCase()}${advice.text.slice(1)}.`,
      good ? null : h("details", {}, h("summary", {}, "Settings and reasons"), h("dl", { class: "pairs" },
        advice.settings.map((each) => [h("dt", {}, each.field), h("dd", {}, `${each.value} ${each.unit}`, h("small", {}, ` ${each.why}`))]))));
    word.className = "sentence";
  }

  function advise(stats, signal) {
    const busy = stats.publishers.filter((each) => each.msgRateIn > 0);
    const weighed = busy.reduce((sum, each) => sum + each.msgRateIn, 0);
    const entries = busy.reduce((sum, each) => sum + each.msgRateIn / (each.messagesPerEntry || 1), 0);
    return get("/console/api/advice", {
      rate: weighed, bytes: stats.averageMsgSize || 1, fill: entries ? weighed / entries : 1, producers: Math.max(1, busy.length),
    }, signal);
  }

  async function showPolicies(signal) {
    const found = await Promise.all(POLICIES.map(([name, title]) =>
      get(`${path}/${name}`, { applied: true }, signal).then((value) => [title, value], () => [title, undefined])));
    const set = found.filter(([, value]) => value !== undefined && value !== null && value !== "");
    fill(policies, set.length ? set.map(([title, value]) => [h("dt", {}, title), h("dd", {}, policy(value))]) : h("dt", {}, "No policy is set."));
  }

  return () => {
    poller.stop();
    chart.stop();
    tail.stop();
  };
}

function policy(value) {
  if (typeof value !== "object") return String(value);
  const parts = Object.entries(value).filter(([, each]) => each !== null && !(Array.isArray(each) && !each.length));
  return parts.map(([name, each]) => `${name} ${typeof each === "object" ? policy(each) : each}`).join(", ") || "none";
}

function definition(data) {
  if (!data) return null;
  try {
    return h("pre", {}, JSON.stringify(JSON.parse(data), null, 2));
  } catch {
    return h("pre", {}, data);
  }
}

// New messages as they are published; the broker applies the filter.
class Tail {
  constructor(topic, book, frame) {
    this.path = `${topicPath(topic)}/tail`;
    this.book = book;
    this.frame = frame;
    this.next = "";
    this.poller = null;
    this.list = h("ol", { class: "messages" });
    this.said = h("p", { class: "none", role: "status" }, "Waiting for messages …");
    this.words = h("input", { type: "search", placeholder: "text in payload, key or property", "aria-label": "Text in payload, key or property" });
    this.key = h("input", { type: "search", placeholder: "key", "aria-label": "Key" });
    this.toggle = h("button", { type: "button", onclick: () => (this.poller ? this.pause() : this.start()) }, "Pause");
    this.element = h("section", { class: "panel", id: "tail" }, h("h2", {}, "Live", h("small", {}, "the newest first; nothing is consumed")),
      h("div", { class: "filters" }, this.words, this.key, this.toggle), this.said, h("div", { class: "tail" }, this.list));
    let waiting = null;
    for (const field of [this.words, this.key]) {
      field.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => {
          this.next = "";
          fill(this.list);
          this.poller?.now();
        }, 250);
      });
    }
  }

  start() {
    if (this.poller) return;
    this.toggle.textContent = "Pause";
    this.poller = new Poller((signal) => this.ask(signal), TAIL_MS, (error) => {
      if (error) this.said.textContent = error.message;
    });
  }

  pause() {
    this.poller.stop();
    this.poller = null;
    this.toggle.textContent = "Resume";
  }

  async ask(signal) {
    const filtered = this.words.value || this.key.value;
    const found = await get(this.path, { from: this.next, count: TAIL_SHOWN, text: this.words.value, key: this.key.value }, signal);
    this.next = found.next;
    const items = await Promise.all(found.messages.slice(-TAIL_SHOWN).map((each) => messageItem(each, this.book)));
    for (const item of items) this.list.prepend(item);
    while (this.list.children.length > TAIL_SHOWN) this.list.lastElementChild.remove();
    const missed = found.skipped + (found.notShown ?? 0) + Math.max(0, found.messages.length - TAIL_SHOWN);
    if (missed) this.said.textContent = `Too many to show: ${count(missed)} messages were skipped.`;
    else if (found.problem) this.said.textContent = found.problem;
    else if (found.behind > 1) {
      this.said.textContent = `${count(found.behind)} entries are still to be searched.`;
      setTimeout(() => this.poller?.now(), AGAIN_MS);
    }
    else this.said.textContent = this.list.children.length ? "" : filtered ? "No message matches yet." : "Waiting for messages …";
  }

  stop() {
    this.poller?.stop();
  }
}
