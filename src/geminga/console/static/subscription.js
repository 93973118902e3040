// One subscription: its state with advice, the map of ack holes, consumers, and actions.

import { get } from "./api.js";
import { actionButtons, skipEntry, subscriptionPath } from "./actions.js";
import { fill, h, keyed, text } from "./dom.js";
import { LEVELS, ago, bytes, count, duration, plural, rate, sentence, sentenceText, topicLink, topicName, topicPath } from "./format.js";
import { HoleMap, chosenEntry } from "./holes.js";
import { Poller } from "./poll.js";

const EVERY_MS = 2000;
const SLOTS = 65536;

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
  const picked = h("div");
  const head = h("div", { class: "head" },
    h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Subscriptions"), " / ",
      h("a", { class: "topic", href: topicLink(topic) }, topicName(topic))),
    h("h1", {}, subscription), said));
  head.append(actionButtons(() => place, subscription, () => consumers.map((each) => each.consumerName), () => poller.now()));
  const map = new HoleMap(
    (from, to, cells) => get(`${subscriptionPath(place, subscription)}/holes`, { from, to, cells }),
    (entry) => chosenEntry(picked, entry, entry.state === "open" || entry.state === "partly" || entry.state === "damaged"
      ? h("button", { type: "button", onclick: () => skipEntry(place, subscription, entry.id, () => poller.now()) }, "Skip it") : null),
  );
  const mapPanel = h("section", { class: "panel", id: "holes" }, h("h2", {}, "Acknowledgements"), map.element, picked);
  const problem = h("p", { class: "refused", role: "alert", hidden: true });
  const content = h("div", {}, parts, facts,
    h("section", { class: "panel" }, h("h2", {}, "Findings"), findings),
    mapPanel,
    h("section", { class: "panel" }, h("h2", {}, "Consumers"), nobody,
      h("div", { class: "scroll" }, h("table", { class: "consumers" }, h("thead", {}, h("tr", {},
        ["Consumer", "Permits", "Unacknowledged", "Out", "Again", "Last acknowledged", "Keys"].map((title) => h("th", { scope: "col" }, title)))), rows))));
  fill(frame.main, head, problem, content);
  const told = frame.toldInstead(content, problem);

  const poller = new Poller(async (signal) => {
    if (partitions === null) {
      const found = await get(`${topicPath(topic)}/partitions`, {}, signal);
      partitions = found?.partitions ?? 0;
    }
    const explained = await get(`${subscriptionPath(topic, subscription)}/explain`, {}, signal);
    explained.sort((a, b) => b.trouble - a.trouble || b.facts.entriesInBacklog - a.facts.entriesInBacklog);
    if (partitions > 0 && place === topic) place = explained[0].topic;
    const found = explained.find((each) => each.topic === place) ?? explained[0];
    const stats = await get(`${topicPath(found.topic)}/stats`, {}, signal);
    const own = stats.subscriptions[subscription];
    if (!own) throw new Error(`the subscription ${subscription} was deleted`);
    consumers = own.consumers;
    show(found, own, stats);
    if (partitions > 0) showParts(explained);
    await map.refresh();
  }, EVERY_MS, (error) => {
    told(error);
    if (!error) return;
    head.className = "head"; // an old level and sentence would look current
    fill(said, (said.told = ""));
  });

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
      fill(parts, h("h2", {}, `${partitions} partitions`, h("small", {}, "the most urgent first; details of the selected one below")), select);
    }
  }

  function show(found, own, stats) {
    const level = LEVELS[found.trouble];
    head.className = `head ${level}`;
    if (said.told !== found.sentence) fill(said, sentence((said.told = found.sentence)), ".");
    const now = Date.now();
    const fact = (title, value, small) => h("div", {}, h("dt", {}, title), h("dd", {}, value, small ? h("small", {}, small) : null));
    fill(facts,
      fact("Backlog", count(found.facts.messagesInBacklog), found.facts.entriesInBacklog ? `${bytes(found.facts.bytesInBacklog)}, ${plural(found.facts.entriesInBacklog, "entry", "entries")}` : ""),
      fact("Oldest", found.facts.oldestBacklogMessageAgeSeconds >= 0 ? duration(found.facts.oldestBacklogMessageAgeSeconds) : "none",
        found.facts.oldestOpenMessage === "end" ? "" : found.facts.oldestOpenMessage),
      fact("Unacknowledged", count(found.facts.messagesHeld ?? own.unackedMessages ?? 0)),
      fact("Holes", count(found.facts.ackHoles)),
      fact("Delayed", count(own.msgDelayed ?? 0)),
      fact("To be redelivered", count(own.msgInReplay ?? 0), found.facts.redeliverUnackedAfterSeconds
        ? `redelivered after ${duration(found.facts.redeliverUnackedAfterSeconds)}: ${count(found.facts.messagesPushedAgain)} so far` : ""),
      fact("In and out", `${rate(stats.msgRateIn)} · ${rate(own.msgRateOut)}`, "messages/s"),
      fact("Expired", count(own.totalMsgExpired ?? 0)));
    const key = JSON.stringify(found.findings);
    if (findings.told !== key) {
      findings.told = key;
      fill(findings, found.findings.length ? found.findings.map(finding)
        : h("li", { class: "none" }, sentence(found.sentence), "."));
    }
    nobody.hidden = own.consumers.length > 0;
    rows.closest("table").hidden = !own.consumers.length;
    keyed(rows, own.consumers, (each) => `${each.consumerName} ${each.address}`, makeConsumer, (row, each) => row.update(each, own, now, found.facts));
  }

  const stop = () => {
    poller.stop();
    map.stop();
  };
  return stop;
}

function finding(each) {
  const level = LEVELS[each.level];
  return h("li", { class: level, "data-kind": each.kind },
    h("div", {}, h("span", { class: `tag ${level === "stopped" ? "bad" : level === "watch" ? "warn" : ""}` }, each.kind), " ", sentence(each.text)),
    each.advice.map(({ text: words, command }) => h("p", { class: "mend" }, words, command ? [": ", h("code", {}, command)] : null)));
}

function bar(share, kind = "") {
  const inner = h("i");
  inner.style.width = `${Math.round(100 * Math.max(0, Math.min(1, share)))}%`;
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, inner);
}

function makeConsumer() {
  const cells = Array.from({ length: 7 }, () => h("td"));
  const row = h("tr", {}, cells);
  row.update = (each, own, now, facts) => {
    const [name, permits, unacked, out, again, acked, keys] = cells;
    fill(name, h("b", {}, each.consumerName || "(no name)"),
      own.activeConsumerName === each.consumerName && own.type === "Failover" ? h("span", { class: "tag good" }, "active") : null,
      each.blockedConsumerOnUnackedMsgs ? h("span", { class: "tag bad" }, "at its limit") : null,
      h("small", {}, `${each.address} · ${each.clientVersion || "unknown client"} · since `, clockOf(each.connectedSince)));
    const most = Math.max(1000, each.availablePermits);
    fill(permits, count(Math.max(0, each.availablePermits)) === "0" ? "none" : count(each.availablePermits),
      bar(each.availablePermits / most, each.availablePermits <= 0 ? "full" : ""));
    // Exclusive and Failover: the active consumer holds all delivered messages.
    const single = own.type === "Exclusive" || own.type === "Failover";
    const held = single ? (each.consumerName === own.activeConsumerName ? facts.messagesHeld : 0) : each.unackedMessages;
    fill(unacked, count(held ?? each.unackedMessages), held ? bar(held / 1000, "some") : null);
    text(out, `${rate(each.msgRateOut)}/s`);
    text(again, each.msgRateRedeliver ? `${rate(each.msgRateRedeliver)}/s` : "");
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
