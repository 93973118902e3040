// Overview of the broker: rates, disk, memory, connected clients, and its event log.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { button, fact, faint, fill, h, head, keyed, link, pairs, panel, table, text } from "./dom.js";
import { bytes, clock, count, duration, plural, perSecond, rate, sentence, subscriptionLink, topicLink, topicName } from "./format.js";

const EVERY_MS = 2000;
const WORDS = { "pushed-again": "redelivered", "gave-way": "freed space" };
const KINDS = [["", "All"], ["changed", "Changes"], ["connected", "Connections"], ["automatic", "Automatic actions"]];
const HOUR_MS = 3600e3;

export function showBroker(frame) {
  frame.title("Broker");
  const title = h("h1", { tabIndex: -1 }, "Broker");
  const said = h("p", { class: "sentence" });
  const facts = h("dl", { class: "facts" });
  const rates = new Chart([["entries", "accent"], ["syncs", "watch"]], (value) => perSecond(value));
  const sizes = new Chart([["written", "moving"]], (value) => `${bytes(value)}/s`);
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
    fill(disk, h("p", {}, `${bytes(found.freeBytes)} free of ${bytes(found.totalBytes)}; the store takes ${bytes(found.usedBytes)}`),
      h("div", { class: `gauge ${found.publishingRefused ? "none" : share > mark - 0.1 ? "low" : ""}` }, inner, line),
      h("dl", { class: "pairs" }, pairs([["Publishing stops at", `${bytes(found.lowWaterBytes)} free`],
        ["Reached", found.secondsToLowWater === null ? "never at the present rate" : `in ${duration(found.secondsToLowWater)} at the present rate`],
        ["Evicted", found.gaveWayLedgers ? `${count(found.gaveWayLedgers)} ledgers, ${bytes(found.gaveWayBytes)}` : "nothing"],
        ["Folder", h("span", { class: "mono" }, found.folder)]])));
  }

  function showMemory({ memory: found, process, store, failures }) {
    const failed = Object.entries(failures ?? {}).filter(([, number]) => number > 0);
    fill(memory, pairs([
      ...(found ? [["Not durable yet", `${bytes(found.pendingBytes)} of ${bytes(found.pendingBytesMax)}`], ["Received, not processed", `${bytes(found.receivedBytes)} of ${bytes(found.receivedBytesMax)}`]] : []),
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
      fill(what, each.count ? h("b", {}, `${count(each.count)} ${each.unit} `) : null,
        each.subscription ? link(subscriptionLink(each.topic, each.subscription), [each.subscription, " "], null) : null,
        each.topic ? link(topicLink(each.topic), topicName(each.topic), "topic") : null,
        h("p", { class: "none" }, sentence(each.text), each.who ? `${each.kind === "connected" ? " from" : ", by"} ${each.who}` : "", each.times > 1 ? ` (${count(each.times)} times since ${clock(each.first_ms)})` : ""));
    });
  }

  return () => [poller, rates, sizes].forEach((each) => each.stop());
}
