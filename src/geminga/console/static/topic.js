// One topic: producers and their batches, subscriptions, messages, schema, policies and ledgers. The partitions
// of a partitioned topic are shown as one topic, with the partition as a column.

import { get } from "./api.js";
import { createSubscription, produce, topicActions } from "./actions.js";
import { Chart } from "./chart.js";
import { shortTopic } from "./command.js";
import { fact, fill, h, keyed, panel, table, text } from "./dom.js";
import { bytes, clock, count, nameOf, namespaceLink, plural, perSecond, rate, schemaPath, sentence, subscriptionLink, topicName, topicPath, topicLink } from "./format.js";
import { Messages, SchemaBook } from "./messages.js";
import { permissions, topicPolicies } from "./policies.js";

const EVERY_MS = 2000;
const SLOW_TURNS = 5;
const LEDGERS_SHOWN = 8;

export function showTopic(frame, topic, query) {
  frame.title(topic.split("/").at(-1));
  const path = topicPath(topic);
  const { tenant, namespace } = nameOf(topic);
  const book = new SchemaBook(topic);
  const facts = h("dl", { class: "facts" });
  const chart = new Chart([["in", "accent"], ["out", "moving"]], (value) => perSecond(value));
  const producers = h("tbody");
  const producerTable = table(["Producer", "In", "Message size", "Messages per entry", "Partitions", "Since"], producers);
  const nobody = h("p", { class: "none" }, "No producer is connected.");
  const word = h("p", { class: "sentence" });
  const subscriptions = h("tbody");
  const unread = h("p", { class: "none" }, "There is no subscription: messages are kept as long as the policies say.");
  const schema = h("div", {}, "…");
  const policies = h("dl", { class: "pairs" });
  const roles = h("dl", { class: "pairs" });
  const ledgers = h("tbody");
  const parts = h("tbody");
  const partsPanel = panel("Partitions", "", table(["Partition", "In", "Out", "Backlog", "Stored"], parts));
  const place = h("div");
  let partitions = null;
  const content = h("div", {},
    facts,
    panel("Messages per second", "the last hour", chart.element),
    panel("Producers", "", word, nobody, producerTable),
    panel("Subscriptions", "", unread, table(["Subscription", "Backlog", "Unacknowledged", "Out", "Consumers"], subscriptions)),
    partsPanel, place,
    h("div", { class: "columns" }, panel("Schema", "", schema), panel("Permissions", "of this topic; those of its namespace apply too", roles)),
    panel("Policies in force", "", policies),
    panel("Ledgers", "the newest first", table(["Ledger", "Entries", "Bytes"], ledgers)));
  const where = `${tenant}/${namespace}`;
  const head = h("div", { class: "head" }, h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/topics" }, "Topics"), " / ",
    h("a", { href: namespaceLink(where) }, where), " / "),
  h("h1", { tabIndex: -1 }, topicName(topic).at(-1))),
  h("div", { class: "actions" }, h("button", { type: "button", "data-action": "produce", onclick: () => produce(topic, () => messages?.begin()) }, "Publish a message"),
    h("button", { type: "button", onclick: () => createSubscription(topic, () => poller.now()) }, "Add a subscription"),
    topicActions(topic, () => partitions, () => poller.now())));
  let turn = 0;
  let messages = null;
  let seeded = false;
  let schemaShown = null;

  const poller = frame.page(head, content, async (signal) => {
    if (partitions === null) partitions = (await get(`${path}/partitions`, {}, signal))?.partitions ?? 0;
    if (!seeded) {
      seeded = true;
      const past = await get(`${path}/history`, {}, signal).catch(() => null);
      if (past?.in.length) chart.seed(past, ["in", "out"]);
    }
    const stats = await get(partitions ? `${path}/partitioned-stats` : `${path}/stats`, partitions ? { perPartition: true } : {}, signal);
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
    showProducers(stats, each);
    unread.hidden = own.length > 0;
    subscriptions.closest(".scroll").hidden = !own.length;
    keyed(subscriptions, own.slice(0, 200), ([name]) => name, ([name]) => h("tr", {},
      h("td", {}, h("a", { class: "row", href: subscriptionLink(topic, name) }, name)), Array.from({ length: 4 }, () => h("td"))), (row, [, one]) => {
      const cells = row.cells;
      text(cells[1], count(one.messagesInBacklog ?? one.msgBacklog));
      text(cells[2], one.unackedMessages ? count(one.unackedMessages) : "");
      text(cells[3], perSecond(one.msgRateOut));
      text(cells[4], one.consumers.length ? `${one.consumers.length} ${one.type ?? ""}` : "none");
    });
    partsPanel.hidden = !each.length;
    keyed(parts, each, ([name]) => name, ([name]) => h("tr", {}, h("td", {}, h("a", { class: "row", href: topicLink(name) }, name.split("-partition-").at(-1))),
      Array.from({ length: 4 }, () => h("td"))), (row, [, one]) => {
      const cells = row.cells;
      text(cells[1], perSecond(one.msgRateIn));
      text(cells[2], perSecond(one.msgRateOut));
      text(cells[3], count(Object.values(one.subscriptions).reduce((sum, it) => sum + (it.messagesInBacklog ?? it.msgBacklog), 0)));
      text(cells[4], bytes(one.storageSize));
    });
  }

  function showProducers(stats, each) {
    nobody.hidden = stats.publishers.length > 0;
    producerTable.hidden = !stats.publishers.length;
    producerTable.classList.toggle("plain", !each.length);
    if (stats.backlogQuotaExceeded) {
      nobody.hidden = false;
      fill(nobody, h("span", { class: "refused" }, "Producers are stopped: ", sentence(stats.backlogQuotaExceeded)));
    } else text(nobody, "No producer is connected.");
    const on = new Map();
    for (const [, one] of each) for (const it of one.publishers) on.set(it.producerName, (on.get(it.producerName) ?? 0) + 1);
    keyed(producers, stats.publishers.slice(0, 100), (one) => `${one.producerName} ${one.producerId} ${one.address}`,
      () => h("tr", {}, Array.from({ length: 6 }, () => h("td"))), (row, one) => {
        const [name, rates, size, filled, spread, since] = row.cells;
        if (!name.textContent) {
          fill(name, h("b", {}, one.producerName), h("small", {}, `${one.address} · ${one.clientVersion || "unknown client"}${one.accessMode === "Shared" ? "" : ` · ${one.accessMode}`}`));
          fill(since, sentence(one.connectedSince ?? ""));
        }
        text(rates, perSecond(one.msgRateIn));
        text(size, bytes(one.averageMsgSize));
        text(filled, each.length ? "·" : one.messagesPerEntry ? one.messagesPerEntry.toFixed(one.messagesPerEntry < 10 ? 1 : 0) : "·");
        text(spread, each.length ? `${on.get(one.producerName) ?? 0} of ${each.length}` : "");
      });
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
      : h("p", { class: "none" }, "None: messages are bytes."),
    (versions?.getSchemaResponses ?? []).filter((each) => each.version !== found.version).reverse().map((each) => h("details", {},
      h("summary", {}, `version ${each.version}, ${each.type}${each.timestamp ? `, of ${clock(each.timestamp)}` : ""}`), definition(each.data))));
    if (turn <= 1) {
      await Promise.all([topicPolicies(policies, topic, signal),
        permissions(roles, { path, noun: "topics", place: shortTopic(topic) }, signal).catch((error) => fill(roles, h("dt", {}, "Roles"), h("dd", { class: "none" }, error.message)))]);
    }
  }

  function showLedgers(inside) {
    const all = Object.entries(inside.partitions ?? { "": inside }).flatMap(([name, one]) => one.ledgers.map((ledger) => [name.split("-partition-")[1], ledger]));
    const newest = all.sort(([, a], [, b]) => b.ledgerId - a.ledgerId).slice(0, LEDGERS_SHOWN);
    fill(ledgers, newest.map(([at, one]) => h("tr", {}, h("td", { class: "mono" }, one.ledgerId, at === undefined ? null : h("small", {}, `partition ${at}`)), h("td", {}, count(one.entries)), h("td", {}, bytes(one.size)))),
      all.length > newest.length ? h("tr", {}, h("td", { colspan: 3, class: "none" }, `and ${plural(all.length - newest.length, "older one")}`)) : null);
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

  return () => {
    poller.stop();
    chart.stop();
    messages?.stop();
  };
}

function definition(data) {
  if (!data) return null;
  try {
    return h("pre", { tabIndex: 0 }, JSON.stringify(JSON.parse(data), null, 2));
  } catch {
    return h("pre", { tabIndex: 0 }, data);
  }
}
