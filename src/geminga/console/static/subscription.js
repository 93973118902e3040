// One subscription: its state with advice, the map of ack holes, consumers, and actions.

import { get } from "./api.js";
import { actionButtons, redrive, skipEntry, subscriptionPath } from "./actions.js";
import { Chart } from "./chart.js";
import { command } from "./command.js";
import { fact, fill, h, keyed, panel, table, text } from "./dom.js";
import { LEVELS, ago, bytes, clock, count, duration, plural, perSecond, rate, sentence, sentenceText, topicLink, topicName, topicPath } from "./format.js";
import { HoleMap, chosenEntry } from "./holes.js";

const EVERY_MS = 2000;
const SLOTS = 65536;
const FINDINGS_SHOWN = 20;
const GROWING_SECONDS = 180;

export function showSubscription(frame, topic, subscription, query) {
  subscriptionPath(topic, subscription); // throws for names that a browser's URL cannot hold
  frame.title(subscription);
  let place = query.get("part") ?? topic; // the shown partition, or the topic itself
  let partitions = null;
  let consumers = [];
  const said = h("p", { class: "sentence" }, "…");
  const facts = h("dl", { class: "facts" });
  const findings = h("ul", { class: "findings" });
  const rows = h("tbody");
  const nobody = h("p", { class: "none", hidden: true }, "No consumer is connected.");
  const parts = h("section", { class: "panel", hidden: true });
  const letters = h("section", { class: "panel", hidden: true });
  const picked = h("div");
  const head = h("div", { class: "head" },
    h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Subscriptions"), " / ",
      h("a", { class: "topic", href: topicLink(topic) }, topicName(topic))),
    h("h1", { tabIndex: -1 }, subscription), said));
  head.append(actionButtons(() => place, subscription, () => consumers.map((each) => each.consumerName), () => poller.now()));
  const map = new HoleMap(
    (from, to, cells) => get(`${subscriptionPath(place, subscription)}/holes`, { from, to, cells }),
    (entry) => chosenEntry(picked, entry, entry.state === "open" || entry.state === "partly" || entry.state === "damaged"
      ? h("button", { type: "button", onclick: () => skipEntry(place, subscription, entry.id, () => poller.now()) }, "Skip it") : null),
  );
  const mapPanel = h("section", { class: "panel", id: "holes" }, h("h2", {}, "Acknowledgements"), map.element, picked);
  const rates = new Chart([["in", "accent"], ["out", "moving"]], (value) => perSecond(value));
  const backlog = new Chart([["backlog", "watch"]], count);
  const trend = h("small");
  const consumerTable = table(["Consumer", "Permits", "Unacknowledged", "Out", "Redelivered", "Last acknowledged", "Keys"], rows);
  const content = h("div", {}, facts,
    h("section", { class: "panel" }, h("h2", {}, "Findings"), findings),
    h("div", { class: "columns" }, h("section", { class: "panel" }, h("h2", {}, "Backlog", trend), backlog.element), panel("Messages per second", "the last hour", rates.element)),
    panel("Consumers", "", nobody, consumerTable),
    letters, parts, mapPanel);
  let seeded = false;

  const poller = frame.page(head, content, async (signal) => {
    if (partitions === null) {
      const found = await get(`${topicPath(topic)}/partitions`, {}, signal);
      partitions = found?.partitions ?? 0;
    }
    if (!seeded) {
      const past = await get(`${subscriptionPath(topic, subscription)}/history`, {}, signal).catch(() => null);
      seeded = true;
      if (past?.backlog.length) {
        rates.seed(past, ["in", "out"]);
        backlog.seed(past, ["backlog"]);
      }
      await showDeadLetters(signal);
    }
    const explained = await get(`${subscriptionPath(topic, subscription)}/explain`, {}, signal);
    explained.sort((a, b) => b.trouble - a.trouble || b.facts.entriesInBacklog - a.facts.entriesInBacklog);
    if (partitions > 0 && place === topic) place = explained[0].topic;
    const found = explained.find((each) => each.topic === place) ?? explained[0];
    const stats = await get(`${topicPath(topic)}/${partitions ? "partitioned-stats" : "stats"}`, partitions ? { perPartition: true } : {}, signal);
    const own = stats.subscriptions[subscription];
    if (!own) throw new Error(`the subscription ${subscription} was deleted`);
    consumers = own.consumers;
    show(merged(explained), own, stats);
    if (partitions > 0) showParts(explained);
    await map.refresh();
  }, EVERY_MS, (error) => {
    if (!error) return;
    head.className = "head"; // an old level and sentence would look current
    fill(said, (said.told = ""));
  });

  async function showDeadLetters(signal) {
    const dead = `${topic}-${subscription.replaceAll("/", "-")}-DLQ`;
    const stats = await get(`${topicPath(dead)}/stats`, {}, signal).catch(() => null);
    letters.hidden = stats === null;
    if (stats === null) return;
    fill(letters, h("h2", {}, "Dead letters", h("small", {}, `${bytes(stats.storageSize)} stored`)),
      h("p", {}, h("a", { href: topicLink(dead) }, "Look at them"), ", or send them back when the cause is fixed: ",
        h("button", { type: "button", onclick: () => redrive(topic, subscription, () => poller.now()) }, "Send dead letters back")));
  }

  function showParts(explained) {
    parts.hidden = false;
    const select = h("select", { "aria-label": "Partition", onchange: (event) => {
      place = event.target.value;
      map.zoom(null);
      poller.now();
    } }, explained.map((each) => h("option", { value: each.topic },
      `partition ${each.topic.split("-partition-").at(-1)}: ${sentenceText(each.sentence).slice(0, 90)}`)));
    select.value = place;
    if (!parts.contains(document.activeElement)) {
      fill(parts, h("h2", {}, `${partitions} partitions`, h("small", {}, "the most urgent first; actions, and the map below, are of the selected one")), select);
    }
  }

  function show(found, own, stats) {
    const level = LEVELS[found.trouble];
    head.className = `head ${level}`;
    if (said.told !== found.sentence) fill(said, sentence((said.told = found.sentence)), ".");
    const now = Date.now();
    fill(facts,
      fact("Backlog", count(found.facts.messagesInBacklog), found.facts.entriesInBacklog ? `${bytes(found.facts.bytesInBacklog)}, ${plural(found.facts.entriesInBacklog, "entry", "entries")}` : ""),
      fact("Oldest", found.facts.oldestBacklogMessageAgeSeconds >= 0 ? duration(found.facts.oldestBacklogMessageAgeSeconds) : "none",
        found.facts.oldestOpenMessage === "end" ? "" : found.facts.oldestOpenMessage),
      fact("Unacknowledged", count(found.facts.messagesHeld ?? own.unackedMessages ?? 0)),
      fact("Holes", count(found.facts.ackHoles)),
      fact("Delayed", count(own.msgDelayed ?? 0)),
      fact("To redeliver", count(own.msgInReplay ?? 0), found.facts.redeliverUnackedAfterSeconds
        ? `redelivered after ${duration(found.facts.redeliverUnackedAfterSeconds)}: ${count(found.facts.messagesPushedAgain)} so far` : ""),
      fact("In and out", `${rate(stats.msgRateIn)} · ${rate(own.msgRateOut)}`, "messages/s"),
      fact("Expired", count(own.totalMsgExpired ?? 0)));
    rates.add(now / 1000, [stats.msgRateIn, own.msgRateOut]);
    backlog.add(now / 1000, [Math.max(0, found.facts.messagesInBacklog >= 0 ? found.facts.messagesInBacklog : found.facts.entriesInBacklog)]);
    text(trend, trendOf(backlog));
    const key = JSON.stringify(found.findings);
    if (findings.told !== key) {
      findings.told = key;
      fill(findings, found.findings.length ? found.findings.map(finding)
        : h("li", { class: "none" }, sentence(found.sentence), "."));
    }
    nobody.hidden = own.consumers.length > 0;
    consumerTable.hidden = !own.consumers.length;
    const on = new Map();
    for (const one of Object.values(stats.partitions ?? {})) {
      for (const each of one.subscriptions[subscription]?.consumers ?? []) on.set(each.consumerName, (on.get(each.consumerName) ?? 0) + 1);
    }
    keyed(rows, own.consumers, (each) => `${each.consumerName} ${each.address}`, makeConsumer,
      (row, each) => row.update(each, own, now, found.facts, partitions ? `${on.get(each.consumerName) ?? 0} of ${plural(partitions, "partition")}` : ""));
  }

  const stop = () => {
    poller.stop();
    map.stop();
    rates.stop();
    backlog.stop();
  };
  return stop;
}

// The facts of all partitions added up, with the findings and the sentence of the most urgent one first.
function merged(explained) {
  if (explained.length === 1) return explained[0];
  const [worst] = explained;
  const facts = { ...worst.facts };
  for (const name of ["messagesInBacklog", "entriesInBacklog", "bytesInBacklog", "messagesHeld", "ackHoles", "messagesPushedAgain"]) {
    const values = explained.map((each) => each.facts[name] ?? 0);
    facts[name] = values.some((each) => each < 0) ? -1 : values.reduce((sum, each) => sum + each, 0);
  }
  facts.oldestBacklogMessageAgeSeconds = Math.max(...explained.map((each) => each.facts.oldestBacklogMessageAgeSeconds));
  const findings = explained.flatMap((each) => each.findings.map((found) => ({ ...found, partition: each.topic.split("-partition-").at(-1) })));
  return { ...worst, facts, findings: findings.sort((a, b) => b.level - a.level).slice(0, FINDINGS_SHOWN) };
}

// Since when the backlog grows, by the samples of the chart.
function trendOf({ times, values: [backlog] }) {
  let at = backlog.length - 1;
  if (at < 1) return "the last hour";
  let grown = 0; // time of the last increase
  while (at > 0 && backlog[at - 1] <= backlog[at]) {
    if (!grown && backlog[at - 1] < backlog[at]) grown = times[at];
    at--;
  }
  while (at < backlog.length - 1 && backlog[at + 1] === backlog[at]) at++;
  if (grown && times.at(-1) - grown < GROWING_SECONDS) {
    return `growing since ${clock(times[at] * 1000)}, by ${count(Math.round(backlog.at(-1) - backlog[at]))}`;
  }
  const before = backlog.findLast((each) => each !== backlog.at(-1));
  if (before === undefined) return "unchanged in the last hour";
  return before > backlog.at(-1) ? "shrinking" : "not growing";
}

function finding(each) {
  const level = LEVELS[each.level];
  return h("li", { class: level, "data-kind": each.kind },
    h("div", {}, h("span", { class: `tag ${level === "stopped" ? "bad" : level === "watch" ? "warn" : ""}` }, each.kind),
      each.partition === undefined ? " " : h("span", { class: "none" }, ` partition ${each.partition}: `), sentence(each.text)),
    each.advice.map(({ text: words, command: way }) => h("p", { class: "advice" }, words, way ? [": ", command(way)] : null)));
}

function bar(share, kind = "") {
  const inner = h("i");
  inner.style.width = `${Math.round(100 * Math.max(0, Math.min(1, share)))}%`;
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, inner);
}

function makeConsumer() {
  const cells = Array.from({ length: 7 }, () => h("td"));
  const row = h("tr", {}, cells);
  row.update = (each, own, now, facts, spread) => {
    const [name, permits, unacked, out, again, acked, keys] = cells;
    fill(name, h("b", {}, each.consumerName || "(no name)"),
      own.activeConsumerName === each.consumerName && own.type === "Failover" ? h("span", { class: "tag good" }, "active") : null,
      each.metadata?.application === "pulsar-function" ? h("span", { class: "tag" }, `function ${each.metadata.id}`) : null,
      each.blockedConsumerOnUnackedMsgs ? h("span", { class: "tag bad" }, "at its limit") : null,
      h("small", {}, `${each.address} · ${each.clientVersion || "unknown client"} ${spread ? `· ${spread} ` : ""}· since `, clockOf(each.connectedSince)));
    const most = Math.max(1000, each.availablePermits);
    fill(permits, count(Math.max(0, each.availablePermits)) === "0" ? "none" : count(each.availablePermits),
      bar(each.availablePermits / most, each.availablePermits <= 0 ? "full" : ""));
    // Exclusive and Failover: the active consumer holds all delivered messages.
    const single = own.type === "Exclusive" || own.type === "Failover";
    const held = single ? (each.consumerName === own.activeConsumerName ? facts.messagesHeld : 0) : each.unackedMessages;
    fill(unacked, count(held ?? each.unackedMessages), held ? bar(held / 1000, "some") : null);
    text(out, perSecond(each.msgRateOut));
    text(again, each.msgRateRedeliver ? perSecond(each.msgRateRedeliver) : "");
    text(acked, ago(each.lastAckedTimestamp, now));
    fill(keys, each.keyHashRangeArrays?.length ? keyRanges(each.keyHashRangeArrays) : "");
  };
  return row;
}

const clockOf = (words) => (words ? sentence(words) : "·");

// A consumer's slots of the 65,536 of the key hash.
function keyRanges(ranges) {
  const slots = ranges.reduce((sum, [from, to]) => sum + to - from + 1, 0);
  const share = `${((100 * slots) / SLOTS).toFixed(slots < SLOTS / 10 ? 1 : 0)} %`;
  return [share, h("svg:svg", { class: "ranges", viewBox: `0 0 ${SLOTS} 8`, preserveAspectRatio: "none", role: "img", "aria-label": `${share} of the keys` },
    ranges.slice(0, 500).map(([from, to]) => h("svg:rect", { x: from, y: 0, width: Math.max(SLOTS / 240, to - from + 1), height: 8 })))];
}
