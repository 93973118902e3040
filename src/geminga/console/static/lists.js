// The pages with one long list: subscriptions, topics, functions and mirrors.

import { Poller, call, get } from "./api.js";
import { LEVELS, STATES, ask, button, bytes, count, duration, faint, fill, h, head, keyed, link, option, panel, pasted, perSecond, plural, rate, sentence, sentenceText, shell, shortTopic, subscriptionLink, text, topicLink, topicName, topicPath, topicsLink } from "./dom.js";

const EVERY_MS = 2000;
const PAGE = 50;
const SKELETONS = 8;
const last = new Map(); // the last answer by address: going back shows it at once

class List {
  // `of`: {base, path, columns, order, key, makeRow, show, empty}; columns: [name, title, meaning, sort].
  constructor(frame, query, of) {
    this.frame = frame;
    this.of = of;
    this.state = this.read(query);
    frame.search.value = this.state.search;
    this.body = h("tbody");
    this.heads = of.columns.map((each) => this.head(...each));
    this.table = h("table", { class: "board" }, h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.pager = h("nav", { class: "pager", "aria-label": "Pages of the list" });
    this.blank = h("div", { class: "empty", hidden: true });
    this.typed = null;
    this.shown = null;
    fill(this.body, Array.from({ length: SKELETONS }, () => h("tr", { class: "skeleton", "aria-hidden": "true" },
      h("td", { colspan: of.columns.length }, h("i")))));
    this.table.addEventListener("pointerleave", () => this.held && this.poller.now());
    this.begun = false;
  }

  begin() {
    const known = last.get(this.address());
    if (known) this.show(known);
    this.poller = new Poller((signal) => this.ask(signal), EVERY_MS, (error) => this.of.told(error));
  }

  read(query) {
    return {
      search: query.get("search") ?? "",
      sort: query.get("sort") ?? this.of.order,
      reverse: query.get("reverse") === "1",
      level: query.get("level") ?? "",
      namespace: query.get("namespace") ?? "",
      page: Math.max(0, Number.parseInt(query.get("page") ?? "0", 10) || 0),
    };
  }

  address(state = this.state) {
    const { search, namespace, sort, reverse, level, page } = state;
    const words = new URLSearchParams(Object.entries({
      search, namespace, sort: sort === this.of.order ? "" : sort, reverse: reverse ? "1" : "", level, page: page || "",
    }).filter(([, value]) => value));
    return words.size ? `${this.of.base}?${words}` : this.of.base;
  }

  head(name, title, meaning, sort) {
    if (!sort) return h("th", { class: name, scope: "col", title: meaning || null }, title);
    return h("th", { class: name, scope: "col", "data-sort": sort }, button(title, () => this.choose(sort), { title: meaning || null }));
  }

  choose(sort) {
    if (this.state.sort !== sort) this.go({ sort, reverse: false, page: 0 });
    else if (!this.state.reverse) this.go({ reverse: true, page: 0 });
    else this.go({ sort: this.of.order, reverse: false, page: 0 });
  }

  go(changes, replace = false) {
    const next = { ...this.state, ...changes };
    if (!replace) {
      location.hash = this.address(next);
      return;
    }
    history.replaceState(null, "", this.address(next));
    this.take(next);
  }

  take(next) {
    this.state = next;
    this.shown = null;
    this.poller.now();
  }

  async ask(signal) {
    const { search, namespace, sort, reverse, level, page } = this.state;
    const address = this.address();
    const found = await get(this.of.path, {
      search: namespace ? `${search} ://${namespace}/` : search, sort, reverse: reverse || null, level: level || null,
      offset: page * PAGE || null, limit: PAGE,
    }, signal);
    last.delete(address);
    last.set(address, found);
    if (last.size > 8) last.delete(last.keys().next().value);
    this.show(found);
    await this.of.more?.(found, this.state, signal);
    if (!found.complete) setTimeout(() => this.poller.now(), 250);
  }

  // Rows under the pointer keep their order; new ones follow behind, and those that are gone stay until it leaves.
  ordered(rows) {
    const { key } = this.of;
    this.held = this.shown !== null && this.body.matches(":hover");
    if (!this.held) return rows;
    const known = new Map(rows.map((row) => [key(row), row]));
    const kept = this.shown.map((row) => known.get(key(row)) ?? row);
    const names = new Set(kept.map(key));
    return [...kept, ...rows.filter((row) => !names.has(key(row)))];
  }

  show(found) {
    this.of.show(found, this.state);
    for (const th of this.heads) {
      const is = th.dataset.sort && th.dataset.sort === this.state.sort;
      if (is) th.setAttribute("aria-sort", this.state.reverse === (this.state.sort === "name") ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    if (!this.begun) fill(this.body);
    this.begun = true;
    this.shown = this.ordered(found.rows);
    keyed(this.body, this.shown, this.of.key, this.of.makeRow, (element, row) => element.update(row, found.now));
    const pages = Math.ceil(found.matching / PAGE);
    const { page } = this.state;
    fill(this.pager, pages <= 1 ? null : [
      button("← Previous", () => this.go({ page: page - 1 }), { disabled: page <= 0 }),
      h("span", {}, `${count(found.offset + 1)} to ${count(found.offset + found.rows.length)} of ${count(found.matching)}`),
      button("Next →", () => this.go({ page: page + 1 }), { disabled: page >= pages - 1 })]);
    this.blank.hidden = found.rows.length > 0;
    this.table.hidden = !found.rows.length;
    if (!found.rows.length) fill(this.blank, this.of.empty(found, this.state));
    this.frame.ready();
  }

  life() {
    const stop = () => {
      clearTimeout(this.typed);
      this.poller.stop();
    };
    stop.again = (query) => {
      const next = this.read(query);
      const { search } = this.frame;
      if (search.value !== next.search && document.activeElement !== search) search.value = next.search;
      this.take(next);
    };
    stop.search = (words) => {
      clearTimeout(this.typed);
      this.typed = setTimeout(() => this.go({ search: words.trim(), page: 0 }, true), 150);
    };
    return stop;
  }
}

// A row of a list: a dot in the colour of its level, a link, which a click beside it opens too, what is `below` it, and
// a cell for each further column.
function listRow(columns, link, ...below) {
  const dot = h("span", { class: "dot", role: "img" });
  const cells = Object.fromEntries(columns.slice(1).map(([name, title = name]) => [name, h("td", { class: `number ${name}`, "data-title": title })]));
  const element = h("tr", {}, h("td", { class: "name" }, h("div", {}, dot, h("div", {}, link, below))), Object.values(cells));
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a, button") && !getSelection().toString()) location.hash = link.getAttribute("href");
  });
  const level = (trouble) => {
    element.className = LEVELS[trouble];
    dot.setAttribute("aria-label", STATES[trouble] ?? "Caught up");
  };
  return { element, cells, level };
}

const SAMPLES = 60;
const GROWTH_SAMPLES = 10;
const TOPICS_SHOWN = 5;
const TOPICS_NAMED = 3;
const ROWS = 200;
const SUBSCRIPTION_COLUMNS = [
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
  const list = new List(frame, query, {
    base: "#/", path: "/admin/v2/geminga/subscriptions", columns: SUBSCRIPTION_COLUMNS, order: "trouble",
    key: (row) => `${row.topic}\n${row.subscription}`,
    makeRow: subscriptionRow,
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
      found.rows.map((row, at) => [at ? ", " : "", link(topicLink(row.topic), topicName(row.topic), "topic")]),
      more > 0 ? [" … ", link(topicsLink({ search }), `all ${count(found.matching)} topics`)] : null] : null);
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
    const add = (number, one, many, rest) => number && parts.push(`${count(number)} ${number === 1 ? one : many} ${rest}`);
    add(blocking, "stops", "stop", "producers");
    add(stopped + growing, "is", "are", "stopped");
    add(watch, "is", "are", "worth a look");
    const calm = totals.subscriptions ? "Nothing is stopped." : "No subscriptions yet.";
    text(headline, !found.complete && !found.rows.length ? "Loading …" : parts.length ? `${parts.join(", ")}.` : calm);
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
      button([STATES[level] ?? "All", h("b", {}, count(number))], () => list.go({ level, page: 0 }),
        { class: `chip ${LEVELS[level] ?? "all"}`, "aria-pressed": String(state.level === level) })));
  }

  return list.life();
}

function subscriptionRow(row) {
  const words = h("p", { class: "sentence" });
  const place = h("span", { class: "topic" });
  const name = link(subscriptionLink(row.topic, row.subscription), [h("span", { class: "subscription" }, row.subscription), place], "row");
  const { element, cells, level } = listRow(SUBSCRIPTION_COLUMNS, name, words);
  const line = sparkline();
  const growth = h("span", { class: "growth" });
  cells.trend.append(line.element, growth);
  const [messages, entries] = [h("b", {}), h("small", {})];
  cells.backlog.append(messages, entries);
  const kind = row.runs || (row.subscription === "geminga-redrive" ? "dead letters sent back" : "");
  fill(place, topicName(row.topic), row.partitions ? ` · ${plural(row.partitions, "partition")}` : null, kind ? h("span", { class: "tag" }, kind) : null);
  const [seen, times] = [[], []]; // samples of this page, all in one unit, and their times in seconds
  let said = "";
  let unit = "";
  element.update = (now, moment) => {
    level(now.trouble);
    if (said !== now.sentence) fill(words, sentence((said = now.sentence)));
    const known = now.messages >= 0;
    text(messages, known ? count(now.messages) : "");
    text(entries, now.entries && (!known || now.entries !== now.messages)
      ? plural(now.entries, "entry") : "");
    text(cells.oldest, now.oldestSeconds >= 0 && now.entries ? duration(now.oldestSeconds) : "");
    const present = known ? "messages" : now.awake || now.entries ? "entries" : "unknown";
    if (present !== unit) seen.length = times.length = 0;
    unit = present;
    seen.push(known ? now.messages : now.entries);
    times.push(moment / 1000);
    if (seen.length > SAMPLES) (seen.shift(), times.shift());
    const grows = growthOf(seen, times);
    text(growth, Math.abs(grows) < 0.05 ? "" : `${grows > 0 ? "+" : "−"}${rate(Math.abs(grows))}/s`);
    growth.className = `growth ${grows > 0.5 ? "up" : grows < -0.5 ? "down" : ""}`;
    line.draw(now.history?.length ? [...now.history, seen.at(-1)] : seen);
    text(cells.unacked, now.unacked ? count(now.unacked) : "");
    text(cells.in, now.awake ? rate(now.rateIn) : "");
    text(cells.out, now.awake ? rate(now.rateOut) : "");
    text(cells.consumers, now.consumers ? `${count(now.consumers)}${now.type ? ` ${now.type}` : ""}` : "none");
  };
  return element;
}

// In messages per second, over the last samples.
function growthOf(seen, times) {
  const first = Math.max(0, seen.length - GROWTH_SAMPLES);
  const seconds = times.at(-1) - times[first];
  return seconds < 2 ? 0 : (seen.at(-1) - seen[first]) / seconds;
}

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
  ["mirror", "Mirrors", "each one copies topics of this cluster to another", "geminga mirror --from pulsar://here:6650 --to pulsar://there:6650 --topics my-topic"],
];

const RUNNING = [["name", "Name"], ["Behind"], ["Oldest"], ["Instances"], ["Out"]];

export function showRunning(frame) {
  frame.title("Functions and mirrors");
  const lists = KINDS.map(([kind, title, words, start]) => {
    const body = h("tbody");
    const none = faint();
    const table = h("table", { class: "board" }, h("thead", {}, h("tr", {}, RUNNING.map(([name, title = name]) => h("th", { scope: "col", class: name }, title)))), body);
    return { kind, body, none, table, start, element: panel(title, words, table, none) };
  });
  const poller = frame.page(head([], "Functions and mirrors"), h("div", {}, lists.map((each) => each.element)), (signal) => Promise.all(lists.map(async ({ kind, body, none, table, start }) => {
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

// `update` gets the rows of a function or mirror, those in most trouble first.
function runningRow(kind, name) {
  const title = link("#/", h("span", { class: "subscription" }, name.replace(/^geminga-mirror\./, "")), "row");
  const topics = h("span");
  const words = h("p", { class: "sentence" });
  const { element, cells, level } = listRow(RUNNING, title, topics, words);
  element.update = (rows) => {
    const [worst] = rows;
    const sum = (field) => rows.reduce((all, row) => all + Math.max(0, row[field] ?? 0), 0);
    const more = rows.length - TOPICS_NAMED;
    level(worst.trouble);
    title.setAttribute("href", rows.length === 1 ? subscriptionLink(worst.topic, name) : `#/?${new URLSearchParams({ search: `is:${kind} ${name}` })}`);
    fill(topics, rows.slice(0, TOPICS_NAMED).map((row) => h("span", { class: "topic" }, topicName(row.topic), " ")), more > 0 ? h("span", { class: "topic" }, `and ${plural(more, "more topic")}`) : null);
    fill(words, sentence(worst.sentence));
    const oldest = Math.max(...rows.map((row) => (row.entries ? row.oldestSeconds : -1)));
    text(cells.Behind, rows.every((row) => row.messages >= 0) ? plural(sum("messages"), "message") : plural(sum("entries"), "entry"));
    text(cells.Oldest, oldest >= 0 ? duration(oldest) : "");
    text(cells.Instances, Math.max(...rows.map((row) => row.consumers)) || "none");
    text(cells.Out, perSecond(sum("rateOut")));
  };
  return element;
}

// --- all topics: a partitioned topic is one row ---
const TOPIC_COLUMNS = [
  ["name", "Topic", "", "name"],
  ["partitions", "Partitions", "", null],
  ["in", "In", "messages per second published", "in"],
  ["out", "Out", "messages per second delivered", "out"],
  ["stored", "Stored", "bytes of entries", "stored"],
  ["subscriptions", "Subscriptions", "", "subscriptions"],
  ["state", "State", "of the subscription in most trouble", "trouble"],
  ["schema", "Schema", "", null],
];
const DEAD_LETTERS = /-(DLQ|RETRY)$/;

export function showTopics(frame, query) {
  frame.title("Topics");
  const headline = h("h1", { "aria-live": "polite", tabIndex: -1 }, "Topics");
  const subline = h("p", { class: "subline" }, "…");
  const namespaces = h("select", { "aria-label": "Namespace", onchange: () => list.go({ namespace: namespaces.value, page: 0 }) });
  const list = new List(frame, query, {
    base: "#/topics", path: "/admin/v2/geminga/topics", columns: TOPIC_COLUMNS, order: "name",
    key: (row) => row.topic, makeRow: topicRow, empty: noTopic,
    show(found, state) {
      if (namespaces.options.length) namespaces.value = state.namespace;
      const where = state.namespace ? ` in ${state.namespace}` : "";
      text(headline, `${plural(found.matching, "topic")}${where}${state.search ? ` like “${state.search}”` : ""}`);
      text(subline, [found.totals ? `${rate(found.totals.msgRateIn)} messages/s in · ${rate(found.totals.msgRateOut)}/s out` : "",
        found.totals?.leftOut ? `${count(found.totals.leftOut)} more are not shown: search for them` : "",
        found.complete ? "" : "still loading"].filter(Boolean).join(" · "));
    },
    told: frame.told,
  });
  fill(frame.main, h("section", { class: "summary" }, headline, subline, h("div", { class: "chips" }, namespaces,
    button("Create a topic", () => createTopic(list.state.namespace)))), list.table, list.blank, list.pager);
  list.begin();
  const chosen = list.state.namespace;
  const offer = (names) => {
    fill(namespaces, h("option", { value: "" }, "All namespaces"), names.map((each) => h("option", { value: each }, each)));
    namespaces.value = list.state.namespace;
  };
  offer(chosen ? [chosen] : []);
  allNamespaces().then((names) => offer(chosen && !names.includes(chosen) ? [chosen, ...names] : names), () => {});
  return list.life();
}

async function allNamespaces() {
  const tenants = await get("/admin/v2/tenants");
  const found = await Promise.all(tenants.slice(0, 100).map((each) => get(`/admin/v2/namespaces/${encodeURIComponent(each)}`).catch(() => [])));
  return found.flat().sort();
}

function noTopic(found, state) {
  if (!found.complete) return h("p", {}, "Loading all topics …");
  if (state.search || state.namespace) return h("p", {}, "No topic matches.");
  return [h("p", {}, "There is no topic yet. Create one above, or publish: "), h("pre", { tabIndex: 0 }, pasted("geminga produce my-topic hello"))];
}

function topicRow(row) {
  const marks = h("span", { class: "marks" });
  const { element, cells, level } = listRow(TOPIC_COLUMNS, link(topicLink(row.topic), h("span", { class: "topic" }, topicName(row.topic)), "row"), marks);
  let said = "";
  element.update = (now) => {
    level(now.trouble);
    text(cells.partitions, now.partitions ? count(now.partitions) : "");
    text(cells.in, now.awake ? perSecond(now.rateIn) : "");
    text(cells.out, now.awake ? perSecond(now.rateOut) : "");
    text(cells.stored, bytes(now.stored));
    text(cells.subscriptions, now.subscriptions ? count(now.subscriptions) : "none");
    text(cells.schema, now.schema ?? "");
    const key = `${now.worst} ${now.sentence} ${now.trouble} ${now.compacted}`;
    if (key === said) return;
    said = key;
    fill(cells.state, now.subscriptions ? h("span", {}, STATES[now.trouble] ?? "Caught up") : "");
    const kind = DEAD_LETTERS.exec(now.topic)?.[1];
    fill(marks, kind ? h("span", { class: "tag warn" }, kind === "DLQ" ? "dead letters" : "retries") : null,
      now.compacted ? h("span", { class: "tag" }, "compacted") : null,
      now.trouble > 2 && now.worst ? h("p", { class: "sentence" }, link(subscriptionLink(now.topic, now.worst), now.worst), ": ", sentence(now.sentence)) : null);
  };
  return element;
}

function createTopic(namespace) {
  ask("Create a topic", {
    fields: {
      name: ["Tenant, namespace and name", { required: true, value: `${namespace || "public/default"}/`, pattern: "[^/]+/[^/]+/.+" }],
      partitions: ["Partitions (0: not partitioned)", { type: "number", min: 0, value: 0 }],
    },
    action: "Create",
    preview: ({ name, partitions }) => ({
      text: `creates ${name.trim()}`,
      command: shell("topics create", [shortTopic(name.trim())], option("--partitions", Number(partitions) || "")),
    }),
    async run({ name, partitions }) {
      const full = `persistent://${shortTopic(name.trim())}`;
      const number = Number(partitions);
      await call("PUT", topicPath(full) + (number ? "/partitions" : ""), { body: number ? String(number) : "{}" });
      location.hash = topicLink(full);
      return `${full} is created`;
    },
  });
}
