// Overview of the broker: rates, disk, memory, connected clients, and its event log.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { fill, h, keyed, text } from "./dom.js";
import { bytes, clock, count, duration, rate, sentence, subscriptionLink, topicLink, topicName } from "./format.js";
import { Poller } from "./poll.js";

const EVERY_MS = 2000;
const WORDS = {
  "pushed-again": "pushed again", expired: "expired", quota: "quota", evicted: "evicted", retention: "retention",
  "gave-way": "freed space", forgotten: "forgotten",
};

export function showBroker(frame) {
  frame.title("Broker");
  const title = h("h1", {}, "Broker");
  const said = h("p", { class: "sentence" });
  const facts = h("dl", { class: "facts" });
  const rates = new Chart([["entries", "accent"], ["syncs", "watch"]], (value) => `${rate(value)}/s`);
  const sizes = new Chart([["written", "moving"]], (value) => `${bytes(value)}/s`);
  const disk = h("div");
  const memory = h("dl", { class: "pairs" });
  const peers = h("tbody");
  const peersTitle = h("h2", {}, "Connections");
  const log = h("ol", { class: "log" });
  const quiet = h("p", { class: "none" }, "Nothing: no message was expired, redelivered, evicted or deleted by retention, and no producer was stopped.");
  const damaged = h("section", { class: "panel", hidden: true });
  const panel = (words, small, ...content) => h("section", { class: "panel" }, h("h2", {}, words, small ? h("small", {}, small) : null), content);
  const problem = h("p", { class: "refused", role: "alert", hidden: true });
  const content = h("div", {}, facts, damaged,
    h("div", { class: "columns" }, panel("Published", "entries, and syncs of the disk", rates.element), panel("Written", "bytes of entries", sizes.element)),
    h("div", { class: "columns" }, panel("Disk", "", disk), panel("Memory and work", "", memory)),
    panel("Automatic actions", "redelivery, expiry, quotas, retention", quiet, log),
    h("section", { class: "panel" }, peersTitle, h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {},
      ["Peer", "Producers", "Consumers", "In flight", "Unread"].map((each) => h("th", { scope: "col" }, each)))), peers))));
  fill(frame.main, h("div", { class: "head" }, h("div", {}, title, said)), problem, content);
  let last = null;

  const poller = new Poller(async (signal) => {
    const [found, happened] = await Promise.all([
      get("/admin/v2/geminga/overview", {}, signal), get("/admin/v2/geminga/happenings", {}, signal),
    ]);
    show(found);
    showLog(happened);
  }, EVERY_MS, frame.toldInstead(content, problem));

  function show(found) {
    text(title, `${found.cluster} `);
    const problem = found.store?.failure ? `The store has stopped: ${found.store.failure}` : found.disk?.publishingRefused
      ? `Publishing is refused: ${found.disk.publishingRefused}` : "";
    title.parentElement.parentElement.className = problem ? "head stopped" : "head";
    text(said, problem || [found.version, found.serviceUrl, found.startedAt ? `up ${duration((found.now - found.startedAt) / 1000)}` : "",
      found.memoryOnly === undefined ? "" : found.memoryOnly ? "in memory only" : `sync ${found.sync}`].filter(Boolean).join(" · "));
    const change = (name) => (last && found.store && found.now > last.now ? ((found.store[name] - last.store[name]) * 1000) / (found.now - last.now) : 0);
    const fact = (words, value, small) => h("div", {}, h("dt", {}, words), h("dd", {}, value, small ? h("small", {}, small) : null));
    const cpu = last ? (found.process.cpuSeconds - last.process.cpuSeconds) / ((found.now - last.now) / 1000) : null;
    const syncs = last && found.store ? found.store.syncs - last.store.syncs : 0;
    fill(facts,
      found.store ? fact("Entries in", `${rate(change("appended_entries"))}/s`, `${bytes(change("appended_bytes"))}/s`) : null,
      found.store ? fact("Syncs", `${rate(change("syncs"))}/s`,
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
        h("li", { class: "stops" }, h("b", {}, each.thing), ` lost ${each.lost}`, h("p", { class: "mend" }, `${each.what}; ${each.file} at ${each.offset}`)))));
    }
    fill(peersTitle, "Connections", h("small", {}, found.peers.length < found.connections ? `${count(found.peers.length)} of ${count(found.connections)}` : ""));
    keyed(peers, found.peers, (each) => each.address, (each) => h("tr", {}, h("td", {}, each.address, h("small", {}, each.clientVersion || "unknown client")),
      Array.from({ length: 4 }, () => h("td"))), (row, each) => {
      const cells = row.cells;
      text(cells[1], each.producers || "");
      text(cells[2], each.consumers || "");
      text(cells[3], each.pendingBytes ? bytes(each.pendingBytes) : "");
      text(cells[4], each.unsentBytes ? bytes(each.unsentBytes) : each.read === false ? "held" : "");
    });
    last = found;
  }

  function showDisk({ disk: found, memoryOnly }) {
    if (!found?.totalBytes) {
      fill(disk, h("p", { class: "none" }, memoryOnly ? "None: everything is kept in memory." : "Not known."));
      return;
    }
    const share = 1 - found.freeBytes / found.totalBytes;
    const mark = 1 - found.lowWaterBytes / found.totalBytes;
    const inner = h("i");
    inner.style.width = `${share * 100}%`;
    const line = h("em");
    line.style.left = `${Math.max(0, Math.min(1, mark)) * 100}%`;
    fill(disk, h("p", {}, `${bytes(found.freeBytes)} free of ${bytes(found.totalBytes)}; the store takes ${bytes(found.usedBytes)}`),
      h("div", { class: `gauge ${found.publishingRefused ? "none" : share > mark - 0.1 ? "low" : ""}` }, inner, line),
      h("dl", { class: "pairs" }, h("dt", {}, "Publishing stops at"), h("dd", {}, `${bytes(found.lowWaterBytes)} free`),
        h("dt", {}, "Reached"), h("dd", {}, found.secondsToLowWater === null ? "not at this rate" : `in ${duration(found.secondsToLowWater)}`),
        h("dt", {}, "Evicted"), h("dd", {}, found.gaveWayLedgers ? `${count(found.gaveWayLedgers)} ledgers, ${bytes(found.gaveWayBytes)}` : "nothing"),
        h("dt", {}, "Folder"), h("dd", { class: "mono" }, found.folder)));
  }

  function showMemory({ memory: found, process, store, failures }) {
    const failed = Object.entries(failures ?? {}).filter(([, number]) => number > 0);
    fill(memory,
      found ? [h("dt", {}, "Not durable yet"), h("dd", {}, `${bytes(found.pendingBytes)} of ${bytes(found.pendingBytesMax)}`),
        h("dt", {}, "Received, not processed"), h("dd", {}, `${bytes(found.receivedBytes)} of ${bytes(found.receivedBytesMax)}`)] : null,
      store ? [h("dt", {}, "Queued writes"), h("dd", {}, count(store.pending_writes))] : null,
      process?.longestTurnSeconds !== undefined ? [h("dt", {}, "Longest turn"), h("dd", {}, duration(process.longestTurnSeconds))] : null,
      [h("dt", {}, "Unexpected failures"), h("dd", { class: failed.length ? "refused" : "" }, failed.length
        ? failed.map(([kind, number]) => `${kind} ${number}`).join(", ") : "none")]);
  }

  function showLog(happened) {
    quiet.hidden = happened.length > 0;
    keyed(log, happened, (each) => `${each.kind} ${each.topic} ${each.subscription} ${each.first_ms}`, (each) => {
      const what = h("div");
      const element = h("li", {}, h("span", { class: "when" }), h("span", {}, h("span", { class: "tag" }, WORDS[each.kind] ?? each.kind)), what);
      return element;
    }, (element, each) => {
      const [when, , what] = element.children;
      const key = `${each.last_ms} ${each.times}`;
      if (element.told === key) return;
      element.told = key;
      text(when, clock(each.last_ms));
      fill(what, each.count ? h("b", {}, `${count(each.count)} ${each.unit} `) : null,
        each.subscription ? h("a", { href: subscriptionLink(each.topic, each.subscription) }, each.subscription, " ") : null,
        h("a", { class: "topic", href: topicLink(each.topic) }, topicName(each.topic)),
        h("p", { class: "none" }, sentence(each.text), each.times > 1 ? ` (${count(each.times)} times since ${clock(each.first_ms)})` : ""));
    });
  }

  return () => {
    poller.stop();
    rates.stop();
    sizes.stop();
  };
}
