// Pages of one topic, whose partitions are shown as one, of one subscription of it, and of the broker.

import { actionButtons, createSubscription, permissions, properties, redrive, registerSchema, skipEntry, subscriptionPath, topicActions, topicPolicies } from "./actions.js";
import { get } from "./api.js";
import { Chart, HoleMap, chosenEntry } from "./charts.js";
import { LEVELS, ago, button, bytes, clock, command, count, distinctBytes, duration, fact, faint, fill, h, head, keyed, link, nameOf, namespaceLink, pairs, panel, perSecond, plural, pretty, rate, schemaPath, sentence, sentenceText, shortTopic, subscriptionLink, table, text, topicLink, topicName, topicPath } from "./dom.js";
import { Messages, SchemaBook, produce } from "./messages.js";

const EVERY_MS = 2000;
const SLOW_TURNS = 5;
const LEDGERS_SHOWN = 8;

const partitionsOf = async (topic, signal) => (await get(`${topicPath(topic)}/partitions`, {}, signal))?.partitions ?? 0;
const statsOf = (topic, partitions, signal) => get(`${topicPath(topic)}/${partitions ? "partitioned-stats" : "stats"}`, { perPartition: partitions > 0 || null }, signal);

export function showTopic(frame, topic, query) {
  frame.title(topic.split("/").at(-1));
  const path = topicPath(topic);
  const { tenant, namespace } = nameOf(topic);
  const book = new SchemaBook(topic);
  const facts = h("dl", { class: "facts" });
  const chart = new Chart([["in", "accent"], ["out", "moving"]], perSecond);
  let partitions = null;
  const producers = table(["Producer", "In", "Message size", "Messages per entry", "Partitions", "Since"], {
    key: (one) => `${one.producerName} ${one.producerId} ${one.address}`,
    name: (one) => [h("b", {}, one.producerName), h("small", {}, `${one.address} · ${one.clientVersion || "unknown client"}${one.accessMode === "Shared" ? "" : ` · ${one.accessMode}`}`)],
    read: (one) => [perSecond(one.msgRateIn), bytes(one.averageMsgSize),
      !partitions && one.messagesPerEntry ? one.messagesPerEntry.toFixed(one.messagesPerEntry < 10 ? 1 : 0) : "·",
      partitions ? `${one.partitions} of ${partitions}` : "", sentenceText(one.connectedSince ?? "")],
    nothing: "No producer is connected.",
  });
  const word = h("p", { class: "sentence" });
  const subscriptions = table(["Subscription", "Backlog", "Unacknowledged", "Out", "Consumers"], {
    key: ([name]) => name, name: ([name]) => link(subscriptionLink(topic, name), name, "row"),
    read: ([, one]) => [count(one.messagesInBacklog ?? one.msgBacklog), one.unackedMessages ? count(one.unackedMessages) : "",
      perSecond(one.msgRateOut), one.consumers.length ? `${one.consumers.length} ${one.type ?? ""}` : "none"],
    nothing: "There is no subscription: messages are kept as long as the policies say.",
  });
  const schema = h("div", {}, "…");
  const policies = h("dl", { class: "pairs" });
  const roles = h("dl", { class: "pairs" });
  const named = h("dl", { class: "pairs" });
  const ledgers = table(["Ledger", "Entries", "Bytes"], {
    key: ([at, one]) => `${at} ${one.ledgerId}`, name: ([at, one]) => [h("span", { class: "mono" }, one.ledgerId), at === undefined ? null : h("small", {}, `partition ${at}`)],
    read: ([, one]) => [count(one.entries), bytes(one.size)], nothing: "None are known.",
  });
  const older = faint();
  const parts = table(["Partition", "In", "Out", "Backlog", "Stored"], {
    key: ([name]) => name, name: ([name]) => link(topicLink(name), name.split("-partition-").at(-1), "row"),
    read: ([, one]) => [perSecond(one.msgRateIn), perSecond(one.msgRateOut),
      count(Object.values(one.subscriptions).reduce((sum, it) => sum + (it.messagesInBacklog ?? it.msgBacklog), 0)), bytes(one.storageSize)],
  });
  const partsPanel = panel("Partitions", "", parts.element);
  const place = h("div");
  const content = h("div", {},
    facts,
    panel("Messages per second", "the last hour", chart.element),
    panel("Producers", "", word, producers.element),
    panel("Subscriptions", "", subscriptions.element),
    partsPanel, place,
    h("div", { class: "columns" }, panel("Schema", "", schema, button("Register a schema", async () => registerSchema(topic, await book.newest(), refresh))),
      h("div", {}, panel("Permissions", "of this topic; those of its namespace apply too", roles), panel("Properties", "", named))),
    panel("Policies in force", "", policies),
    panel("Ledgers", "the newest first", ledgers.element, older));
  const where = `${tenant}/${namespace}`;
  let turn = 0; // of polls: slow requests are sent in some of them
  const refresh = () => {
    turn = 0;
    poller.now();
  };
  const top = head([link("#/topics", "Topics", null), link(namespaceLink(where), where, null)], topicName(topic).at(-1), null,
    button("Publish a message", () => produce(topic, () => messages?.begin()), { "data-action": "produce" }),
    button("Add a subscription", () => createSubscription(topic, refresh)), topicActions(topic, () => partitions, refresh));
  let messages = null;
  let seeded = false;
  let schemaShown = null;

  const poller = frame.page(top, content, async (signal) => {
    partitions ??= await partitionsOf(topic, signal);
    if (!seeded) {
      seeded = true;
      const past = await get(`${path}/history`, {}, signal).catch(() => null);
      if (past?.in.length) chart.seed(past, ["in", "out"]);
    }
    const stats = await statsOf(topic, partitions, signal);
    show(stats);
    if (!messages) {
      messages = new Messages(topic, query, partitions ? Array.from({ length: partitions }, (_, at) => `${topic}-partition-${at}`) : [topic]);
      fill(place, messages.element);
      messages.begin(false);
    }
    if (turn++ % SLOW_TURNS === 0) await showSlow(stats, signal);
  }, EVERY_MS);

  function show(stats) {
    const own = Object.entries(stats.subscriptions);
    const each = Object.entries(stats.partitions ?? {});
    fill(facts,
      fact("In", perSecond(stats.msgRateIn), `${bytes(stats.msgThroughputIn)}/s`),
      fact("Out", perSecond(stats.msgRateOut), `${bytes(stats.msgThroughputOut)}/s`),
      fact("Message size", bytes(stats.averageMsgSize)),
      fact("Stored", bytes(stats.storageSize)),
      fact("Producers", count(stats.publishers.length), stats.waitingPublishers ? `${stats.waitingPublishers} wait` : ""),
      fact("Subscriptions", count(own.length)),
      fact("Published", count(stats.msgInCounter), "since it was loaded"));
    chart.add(Date.now() / 1000, [stats.msgRateIn, stats.msgRateOut]);
    producers.show(stats.publishers.slice(0, 100));
    producers.scroll.classList.toggle("plain", !each.length);
    if (stats.backlogQuotaExceeded) {
      producers.none.hidden = false;
      fill(producers.none, h("span", { class: "refused" }, "Producers are stopped: ", sentence(stats.backlogQuotaExceeded)));
    } else text(producers.none, "No producer is connected.");
    subscriptions.show(own.slice(0, 200));
    partsPanel.hidden = !each.length;
    parts.show(each);
  }

  async function showSlow(stats, signal) {
    const nothing = () => null;
    const [inside, found, advice] = await Promise.all([
      get(partitions ? `${path}/partitioned-internalStats` : `${path}/internalStats`, {}, signal).catch(nothing), book.newest(),
      partitions ? null : advise(stats, signal).catch(nothing),
    ]);
    if (inside) showLedgers(inside);
    showAdvice(advice);
    if (turn > 1 && schemaShown === (found?.version ?? null)) return;
    schemaShown = found?.version ?? null;
    const versions = found ? await get(`${schemaPath(topic)}/schemas`, {}, signal).catch(nothing) : null;
    fill(schema, found ? [h("p", {}, h("span", { class: "tag" }, found.type), ` version ${found.version ?? 0}`), h("br"), definition(found.data)]
      : faint("None: messages are bytes."),
    (versions?.getSchemaResponses ?? []).filter((each) => each.version !== found.version).reverse().map((each) => h("details", {},
      h("summary", {}, `version ${each.version}, ${each.type}${each.timestamp ? `, of ${clock(each.timestamp)}` : ""}`), definition(each.data))));
    if (turn <= 1) {
      await Promise.all([topicPolicies(policies, topic, signal), properties(named, topic, signal).catch((error) => fill(named, pairs([["Properties", error.message]]))),
        permissions(roles, { path, noun: "topics", place: shortTopic(topic) }, signal).catch((error) => fill(roles, pairs([["Roles", error.message]])))]);
    }
  }

  function showLedgers(inside) {
    const all = Object.entries(inside.partitions ?? { "": inside }).flatMap(([name, one]) => one.ledgers.map((ledger) => [name.split("-partition-")[1], ledger]));
    ledgers.show(all.sort(([, a], [, b]) => b.ledgerId - a.ledgerId).slice(0, LEDGERS_SHOWN));
    text(older, all.length > LEDGERS_SHOWN ? `and ${plural(all.length - LEDGERS_SHOWN, "older one")}` : "");
  }

  function showAdvice(advice) {
    if (!advice || advice.verdict === "quiet") return fill(word);
    const good = advice.verdict === "good";
    fill(word, h("span", { class: `tag ${good ? "good" : "warn"}` }, good ? "batches are as full as they can be" : "batches could be fuller"), " ",
      `${advice.text.charAt(0).toUpperCase()}${advice.text.slice(1)}.`,
      good ? null : h("details", {}, h("summary", {}, "Settings and reasons"), h("dl", { class: "pairs" },
        pairs(advice.settings.map((each) => [each.field, `${each.value} ${each.unit}`, h("small", {}, ` ${each.why}`)])))));
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

  return () => [poller, chart, messages].forEach((each) => each?.stop());
}

const definition = (data) => (data ? h("pre", { tabIndex: 0 }, pretty(data)) : null);

const SLOTS = 65536;
const FINDINGS_SHOWN = 20;
const GROWING_SECONDS = 180;
const HOUR_MS = 3600e3;

export function showSubscription(frame, topic, subscription, query) {
  subscriptionPath(topic, subscription); // throws for names that a browser's URL cannot hold
  frame.title(subscription);
  let place = query.get("part") ?? topic; // the shown partition, or the topic itself
  let partitions = null;
  const said = h("p", { class: "sentence" }, "…");
  const facts = h("dl", { class: "facts" });
  const findings = h("ul", { class: "findings" });
  const parts = h("section", { class: "panel", hidden: true });
  const letters = h("section", { class: "panel", hidden: true });
  const picked = h("div");
  const top = head([link("#/", "Subscriptions", null), link(topicLink(topic), topicName(topic), "topic")], subscription, said,
    actionButtons(() => place, subscription, () => shown.own.consumers.map((each) => each.consumerName), () => poller.now()));
  const map = new HoleMap(
    (from, to, cells) => get(`${subscriptionPath(place, subscription)}/holes`, { from, to, cells }),
    (entry) => chosenEntry(picked, entry, entry.state === "open" || entry.state === "partly" || entry.state === "damaged"
      ? button("Skip it", () => skipEntry(place, subscription, entry.id, () => poller.now())) : null),
  );
  const mapPanel = h("section", { class: "panel", id: "holes" }, h("h2", {}, "Acknowledgements"), map.element, picked);
  const rates = new Chart([["in", "accent"], ["out", "moving"]], perSecond);
  const backlog = new Chart([["backlog", "watch"]], count);
  const trend = h("small");
  let shown = { own: { consumers: [] } }; // the subscription's last stats
  const consumers = table(["Consumer", "Permits", "Unacknowledged", "Out", "Redelivered", "Last acknowledged", "Keys"], {
    key: (each) => `${each.consumerName} ${each.address}`, read: (each) => consumerCells(each, shown), nothing: "No consumer is connected.",
  });
  const content = h("div", {}, facts,
    panel("Findings", "", findings),
    h("div", { class: "columns" }, panel(["Backlog", trend], "", backlog.element), panel("Messages per second", "the last hour", rates.element)),
    panel("Consumers", "", consumers.element),
    letters, parts, mapPanel);
  let seeded = false;

  const poller = frame.page(top, content, async (signal) => {
    partitions ??= await partitionsOf(topic, signal);
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
    const stats = await statsOf(topic, partitions, signal);
    const own = stats.subscriptions[subscription];
    if (!own) throw new Error(`the subscription ${subscription} was deleted`);
    show(merged(explained), own, stats);
    if (partitions > 0) showParts(explained);
    await map.refresh();
  }, EVERY_MS, (error) => {
    if (!error) return;
    top.className = "head"; // an old level and sentence would look current
    fill(said, (said.told = ""));
  });

  async function showDeadLetters(signal) {
    const dead = `${topic}-${subscription.replaceAll("/", "-")}-DLQ`;
    const stats = await get(`${topicPath(dead)}/stats`, {}, signal).catch(() => null);
    letters.hidden = stats === null;
    if (stats === null) return;
    fill(letters, h("h2", {}, "Dead letters", h("small", {}, `${bytes(stats.storageSize)} stored`)),
      h("p", {}, link(topicLink(dead), "Look at them", null), ", or send them back when the cause is fixed: ",
        button("Send dead letters back", () => redrive(topic, subscription, () => poller.now()))));
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
    top.className = `head ${level}`;
    if (said.told !== found.sentence) fill(said, sentence((said.told = found.sentence)), ".");
    const now = Date.now();
    const ahead = own.entriesReadAhead; // undefined: among the others
    fill(facts,
      fact("Backlog", count(found.facts.messagesInBacklog), found.facts.entriesInBacklog ? `${bytes(found.facts.bytesInBacklog)}, ${plural(found.facts.entriesInBacklog, "entry")}` : ""),
      fact("Oldest", found.facts.oldestBacklogMessageAgeSeconds >= 0 ? duration(found.facts.oldestBacklogMessageAgeSeconds) : "none",
        found.facts.oldestOpenMessage === "end" ? "" : found.facts.oldestOpenMessage),
      fact("Unacknowledged", count(found.facts.messagesHeld ?? own.unackedMessages ?? 0)),
      fact("Holes", count(found.facts.ackHoles)),
      fact("Delayed", count(own.msgDelayed ?? 0)),
      fact("To redeliver", count((own.msgInReplay ?? 0) - (ahead ?? 0)), found.facts.redeliverUnackedAfterSeconds
        ? `redelivered after ${duration(found.facts.redeliverUnackedAfterSeconds)}: ${count(found.facts.messagesPushedAgain)} so far`
        : own.type === "Key_Shared" ? `${ahead === undefined ? "or" : count(ahead)} read ahead` : ""),
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
    shown = { own, now, facts: found.facts, partitions };
    consumers.show(own.consumers);
  }

  return () => [poller, map, rates, backlog].forEach((each) => each.stop());
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
  if (at < 1) return "";
  const seconds = times[at] - times[0];
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
  if (before === undefined) return `unchanged in the ${seconds < 3500 ? `${duration(seconds)} that are recorded` : "last hour"}`;
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

function consumerCells(each, { own, now, facts, partitions }) {
  // Exclusive and Failover: the active consumer holds all delivered messages.
  const single = own.type === "Exclusive" || own.type === "Failover";
  const active = own.activeConsumerName === each.consumerName;
  const held = (single ? (active ? facts.messagesHeld : 0) : each.unackedMessages) ?? each.unackedMessages;
  const permits = each.availablePermits;
  const tag = (words, kind = "") => h("span", { class: `tag ${kind}` }, words);
  return [
    [h("b", {}, each.consumerName || "(no name)"), active && own.type === "Failover" ? tag("active", "good") : null,
      each.metadata?.application === "pulsar-function" ? tag(`function ${each.metadata.id}`) : null,
      each.blockedConsumerOnUnackedMsgs ? tag("at its limit", "bad") : null,
      h("small", {}, `${each.address} · ${each.clientVersion || "unknown client"} · `, partitions ? `${each.partitions} of ${plural(partitions, "partition")} · ` : "",
        "since ", sentence(each.connectedSince ?? "·"))],
    [permits > 0 ? count(permits) : "none", bar(permits / Math.max(1000, permits), permits <= 0 ? "full" : "")],
    [count(held), held ? bar(held / 1000, "some") : null],
    perSecond(each.msgRateOut), each.msgRateRedeliver ? perSecond(each.msgRateRedeliver) : "", ago(each.lastAckedTimestamp, now),
    each.keyHashRangeArrays?.length ? keyRanges(each.keyHashRangeArrays) : ""];
}

// A consumer's slots of the 65,536 of the key hash.
function keyRanges(ranges) {
  const slots = ranges.reduce((sum, [from, to]) => sum + to - from + 1, 0);
  const share = `${((100 * slots) / SLOTS).toFixed(slots < SLOTS / 10 ? 1 : 0)} %`;
  return [share, h("svg:svg", { class: "ranges", viewBox: `0 0 ${SLOTS} 8`, preserveAspectRatio: "none", role: "img", "aria-label": `${share} of the keys` },
    ranges.slice(0, 500).map(([from, to]) => h("svg:rect", { x: from, y: 0, width: Math.max(SLOTS / 240, to - from + 1), height: 8 })))];
}

// --- the broker: rates, disk, memory, connected clients, and its events ---
const WORDS = { "pushed-again": "redelivered", "gave-way": "freed space" };
const KINDS = [["", "All"], ["changed", "Changes"], ["connected", "Connections"], ["automatic", "Automatic actions"]];

export function showBroker(frame) {
  frame.title("Broker");
  const title = h("h1", { tabIndex: -1 }, "Broker");
  const said = h("p", { class: "sentence" });
  const facts = h("dl", { class: "facts" });
  const rates = new Chart([["entries", "accent"], ["syncs", "watch"]], perSecond);
  const sizes = new Chart([["written", "moving"]], (value) => `${bytes(value)}/s`, true);
  const disk = h("div");
  const memory = h("dl", { class: "pairs" });
  const peersTitle = h("h2", {}, "Connections");
  const peers = table(["Client", "Producers", "Consumers", "Publishes", "Receives", "Not stored yet", "Unread"], {
    key: (each) => `${each.address} ${each.clientVersion} ${each.names}`,
    name(each) {
      const names = (each.names ?? []).join(", ");
      return [h("b", {}, names || each.address), h("small", {}, [names ? each.address : "", each.role, each.clientVersion || "unknown client"].filter(Boolean).join(" · "))];
    },
    read: (each) => [String(each.producers || ""), String(each.consumers || ""),
      each.rateIn ? `${rate(each.rateIn)}/s, ${bytes(each.bytesIn)}/s` : "", each.rateOut ? `${rate(each.rateOut)}/s, ${bytes(each.bytesOut)}/s` : "",
      each.pendingBytes ? bytes(each.pendingBytes) : "", each.unsentBytes ? bytes(each.unsentBytes) : each.read === false ? "not read" : ""],
    nothing: "No client is connected.",
  });
  const log = h("ol", { class: "log" });
  const quiet = faint("None: nothing was changed, no client connected, and no message was expired, redelivered or evicted.");
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Kind of event" });
  const recent = faint();
  let kind = "";
  let events = [];
  const damaged = h("section", { class: "panel", hidden: true });
  const content = h("div", {}, facts, damaged,
    h("div", { class: "columns" }, panel("Published", "entries, and syncs of the disk", rates.element), panel("Written", "bytes of entries", sizes.element)),
    h("div", { class: "columns" }, panel("Disk", "", disk), panel("Memory and work", "", memory)),
    h("section", { class: "panel" }, peersTitle, peers.element),
    panel("Events", "changes and by whom, connections, redelivery, expiry, quotas, retention", filters, recent, quiet, log));
  let last = null;

  const poller = frame.page(head([], title, said), content, async (signal) => {
    const [found, happened] = await Promise.all([
      get("/admin/v2/geminga/overview", {}, signal), get("/admin/v2/geminga/happenings", {}, signal),
    ]);
    show(found);
    showLog(happened);
  }, EVERY_MS);

  function show(found) {
    text(title, `${found.cluster} `);
    const problem = found.store?.failure ? `The store has stopped: ${found.store.failure}` : found.disk?.publishingRefused
      ? `Publishing is refused: ${found.disk.publishingRefused}` : "";
    title.parentElement.parentElement.className = problem ? "head stopped" : "head";
    text(said, problem || [found.version, found.serviceUrl, found.startedAt ? `up ${duration((found.now - found.startedAt) / 1000)}` : "",
      found.memoryOnly === undefined ? "" : found.memoryOnly ? "in memory only" : `sync ${found.sync}`].filter(Boolean).join(" · "));
    const change = (name) => (last && found.store && found.now > last.now ? ((found.store[name] - last.store[name]) * 1000) / (found.now - last.now) : 0);
    const cpu = last ? (found.process.cpuSeconds - last.process.cpuSeconds) / ((found.now - last.now) / 1000) : null;
    const syncs = last && found.store ? found.store.syncs - last.store.syncs : 0;
    fill(facts,
      found.store ? fact("Entries in", perSecond(change("appended_entries")), `${bytes(change("appended_bytes"))}/s`) : null,
      found.store ? fact("Syncs", perSecond(change("syncs")),
        syncs > 0 ? `${duration((found.store.sync_seconds_total - last.store.sync_seconds_total) / syncs)} each` : "") : null,
      fact("Connections", count(found.connections), found.connectionsRefused ? `${count(found.connectionsRefused)} refused` : ""),
      fact("Topics in memory", count(found.topicsLoaded)),
      found.process?.residentBytes ? fact("Memory", bytes(found.process.residentBytes)) : null,
      cpu === null || Number.isNaN(cpu) ? null : fact("CPU", `${(cpu * 100).toFixed(cpu < 0.1 ? 1 : 0)} %`, "of a core"));
    if (last && found.store && found.now > last.now) {
      rates.add(found.now / 1000, [change("appended_entries"), change("syncs")]);
      sizes.add(found.now / 1000, [change("appended_bytes")]);
    }
    showDisk(found);
    showMemory(found);
    damaged.hidden = !found.damageCount;
    if (found.damageCount && damaged.told !== found.damageCount) {
      damaged.told = found.damageCount;
      fill(damaged, h("h2", {}, "Quarantine", h("small", {}, "data lost by damage")), h("ul", { class: "findings" }, found.damage.map((each) =>
        h("li", { class: "stops" }, h("b", {}, each.thing), ` lost ${each.lost}`, h("p", { class: "advice" }, `${each.what}; ${each.file} at ${each.offset}`)))));
    }
    fill(peersTitle, "Connections", h("small", {}, found.peers.length < found.connections ? `the ${count(found.peers.length)} with the most load of ${count(found.connections)}` : "the most load first"));
    peers.show(found.peers);
    last = found;
  }

  function showDisk({ disk: found, memoryOnly }) {
    if (!found?.totalBytes) {
      fill(disk, faint(memoryOnly ? "None: everything is kept in memory." : "Not known."));
      return;
    }
    const share = 1 - found.freeBytes / found.totalBytes;
    const mark = 1 - found.lowWaterBytes / found.totalBytes;
    const inner = h("i");
    inner.style.width = `${share * 100}%`;
    const line = h("em");
    line.style.left = `${Math.max(0, Math.min(1, mark)) * 100}%`;
    const [free, least] = distinctBytes(found.freeBytes, found.lowWaterBytes);
    fill(disk, h("p", {}, `${free} free of ${bytes(found.totalBytes)}; the store takes ${bytes(found.usedBytes)}`),
      h("div", { class: `gauge ${found.publishingRefused ? "none" : share > mark - 0.1 ? "low" : ""}` }, inner, line),
      h("dl", { class: "pairs" }, pairs([["Publishing stops at", `${least} free`],
        ["Reached", found.secondsToLowWater === null ? "never at the present rate" : `in ${duration(found.secondsToLowWater)} at the present rate`],
        ["Evicted", found.gaveWayLedgers ? `${count(found.gaveWayLedgers)} ledgers, ${bytes(found.gaveWayBytes)}` : "nothing"],
        ["Folder", h("span", { class: "mono" }, found.folder)]])));
  }

  function showMemory({ memory: found, process, store, failures }) {
    const failed = Object.entries(failures ?? {}).filter(([, number]) => number > 0);
    fill(memory, pairs([
      ...(found ? [["Not durable yet", distinctBytes(found.pendingBytes, found.pendingBytesMax).join(" of ")], ["Received, not processed", distinctBytes(found.receivedBytes, found.receivedBytesMax).join(" of ")]] : []),
      ...(store ? [["Queued writes", count(store.pending_writes)]] : []),
      ...(process?.longestTurnSeconds !== undefined ? [["Longest pause of the event loop", duration(process.longestTurnSeconds)]] : []),
      ["Unexpected failures", failed.length ? h("span", { class: "refused" }, failed.map(([kind, number]) => `${kind} ${number}`).join(", ")) : "none"]]));
  }

  function showLog(found) {
    events = found;
    const isOf = (each, name) => !name || (name === "automatic" ? !["changed", "connected"].includes(each.kind) : each.kind === name);
    const happened = events.filter((each) => isOf(each, kind));
    const numbers = KINDS.map(([name]) => events.filter((each) => isOf(each, name)).length);
    if (filters.told !== `${numbers} ${kind}`) {
      filters.told = `${numbers} ${kind}`;
      fill(filters, KINDS.map(([name, words], at) => button([words, h("b", {}, count(numbers[at]))], () => {
        kind = name;
        showLog(events);
      }, { class: "chip", "aria-pressed": String(kind === name) })));
    }
    const now = last?.now ?? Date.now();
    const hour = events.filter((each) => now - each.last_ms < HOUR_MS);
    const changes = hour.filter((each) => each.kind === "changed").reduce((sum, each) => sum + each.times, 0);
    text(recent, `In the last hour: ${plural(changes, "change")}, ${plural(hour.filter((each) => each.kind === "connected").reduce((sum, each) => sum + each.count, 0), "connection")}, ${plural(hour.filter((each) => isOf(each, "automatic")).length, "automatic action")}.`);
    quiet.hidden = happened.length > 0;
    keyed(log, happened, (each) => `${each.kind} ${each.topic} ${each.subscription} ${each.first_ms} ${each.who} ${each.kind === "changed" ? each.text : ""}`, (each) => h("li", {}, h("span", { class: "when" }), h("span", {}, h("span", { class: "tag" }, WORDS[each.kind] ?? each.kind)), h("div")), (element, each) => {
      const [when, , what] = element.children;
      const key = `${each.last_ms} ${each.times}`;
      if (element.told === key) return;
      element.told = key;
      text(when, clock(each.last_ms));
      fill(what, each.count ? h("b", {}, plural(each.count, each.unit), " ") : null,
        each.subscription ? link(subscriptionLink(each.topic, each.subscription), [each.subscription, " "], null) : null,
        each.topic ? link(topicLink(each.topic), topicName(each.topic), "topic") : null,
        h("p", { class: "none" }, sentence(each.text), each.who ? `${each.kind === "connected" ? " from" : ", by"} ${each.who}` : "", each.times > 1 ? ` (${count(each.times)} times since ${clock(each.first_ms)})` : ""));
    });
  }

  return () => [poller, rates, sizes].forEach((each) => each.stop());
}
