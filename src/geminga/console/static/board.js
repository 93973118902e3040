// The first page: all subscriptions, the most urgent first, each with a sentence about its state.

import { get } from "./api.js";
import { h, fill, keyed, text } from "./dom.js";
import { LEVELS, count, duration, plural, rate, sentence, sentenceText, subscriptionLink, topicLink, topicName } from "./format.js";
import { Poller } from "./poll.js";
import { sparkline } from "./spark.js";

const EVERY_MS = 2000;
const PAGE = 50;
const SAMPLES = 60;
const COLUMNS = [
  ["name", "Subscription", "", "name"],
  ["backlog", "Backlog", "unacknowledged messages, and their entries", "backlog"],
  ["oldest", "Oldest", "publish time of the oldest unacknowledged message", null],
  ["trend", "Trend", "backlog over time", null],
  ["unacked", "Unacked", "messages delivered and not acknowledged", "unacked"],
  ["in", "In", "messages per second published to the topic", "in"],
  ["out", "Out", "messages per second delivered", "out"],
  ["consumers", "Consumers", "", "consumers"],
];

export function showBoard(frame, query) {
  let state = read(query);
  frame.title("");
  frame.search.value = state.search;
  const headline = h("h1", { "aria-live": "polite" }, "…");
  const subline = h("p", { class: "subline" });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show" });
  const body = h("tbody");
  const heads = COLUMNS.map(([name, title, meaning, sort]) => head(name, title, meaning, sort));
  const pager = h("nav", { class: "pager", "aria-label": "More subscriptions", hidden: true });
  const empty = h("div", { class: "empty", hidden: true });
  const history = new Map();
  fill(frame.main,
    h("section", { class: "summary" }, headline, subline, chips),
    h("table", { class: "board" }, h("thead", {}, h("tr", {}, heads)), body),
    empty, pager);

  function head(name, title, meaning, sort) {
    if (!sort) return h("th", { class: name, scope: "col", title: meaning }, title);
    const button = h("button", { type: "button", title: meaning, onclick: () => choose(sort) }, title);
    return h("th", { class: name, scope: "col", "data-sort": sort }, button);
  }

  function choose(sort) {
    if (state.sort !== sort) go({ sort, reverse: false, page: 0 });
    else if (!state.reverse) go({ reverse: true, page: 0 });
    else go({ sort: "trouble", reverse: false, page: 0 });
  }

  function go(changes, replace = false) {
    const next = { ...state, ...changes };
    const words = new URLSearchParams();
    if (next.search) words.set("search", next.search);
    if (next.sort !== "trouble") words.set("sort", next.sort);
    if (next.reverse) words.set("reverse", "1");
    if (next.level) words.set("level", next.level);
    if (next.page) words.set("page", next.page);
    const address = words.size ? `#/?${words}` : "#/";
    if (replace) {
      history_replace(address);
      take(next);
    } else location.hash = address;
  }

  function take(next) {
    state = next;
    poller.now();
  }

  const poller = new Poller(async (signal) => {
    const found = await get("/admin/v2/geminga/subscriptions", {
      search: state.search, sort: state.sort, reverse: state.reverse || null, level: state.level || null,
      offset: state.page * PAGE || null, limit: PAGE,
    }, signal);
    show(found);
    if (!found.complete) setTimeout(() => poller.now(), 250);
  }, EVERY_MS, (error) => {
    frame.told(error);
    if (error) text(headline, sentenceText(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`));
  });

  function show(found) {
    summary(found.totals, found);
    for (const th of heads) {
      const is = th.dataset.sort && th.dataset.sort === state.sort;
      if (is) th.setAttribute("aria-sort", state.reverse === (state.sort === "name") ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    keyed(body, found.rows, (row) => `${row.topic}\n${row.subscription}`, makeRow, (element, row) => {
      element.update(row, remember(row));
    });
    const pages = Math.ceil(found.matching / PAGE);
    pager.hidden = pages <= 1;
    if (pages > 1) {
      const first = found.offset + 1;
      fill(pager,
        h("button", { type: "button", disabled: state.page <= 0, onclick: () => go({ page: state.page - 1 }) }, "← Before"),
        h("span", {}, `${count(first)} to ${count(found.offset + found.rows.length)} of ${count(found.matching)}`),
        h("button", { type: "button", disabled: state.page >= pages - 1, onclick: () => go({ page: state.page + 1 }) }, "Behind →"));
    }
    empty.hidden = found.rows.length > 0;
    if (!found.rows.length) showEmpty(found);
  }

  function showEmpty(found) {
    const looksLikeATopic = /^[^/\s]+\/[^/\s]+\/\S+$|:\/\//.test(state.search);
    const topic = state.search.includes("://") ? state.search : `persistent://${state.search}`;
    fill(empty, found.complete
      ? state.search || state.level
        ? [h("p", {}, "No subscription matches."),
           looksLikeATopic ? h("p", {}, h("a", { href: topicLink(topic) }, `Show the topic ${topic}`)) : null]
        : [h("p", {}, "There is no subscription yet."),
           h("p", {}, "Publish and receive something: "),
           h("pre", {}, "geminga produce my-topic hello\ngeminga consume my-topic -s my-subscription")]
      : h("p", {}, "Loading all subscriptions …"));
  }

  function summary(totals, found) {
    if (!totals) {
      text(headline, `${count(found.matching)} subscriptions that you may see`);
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
    const levels = [["", "All", totals.subscriptions], ["6", "Producers stopped", blocking],
      ["5", "Stopped and growing", growing], ["4", "Stopped", stopped], ["3", "Worth a look", watch],
      ["2", "Moving", moving], ["1", "Idle", idle]];
    fill(chips, levels.filter(([level, , number]) => number || !level || level === state.level).map(([level, title, number]) =>
      h("button", {
        type: "button", class: `chip ${LEVELS[level] ?? "all"}`, "aria-pressed": String(state.level === level),
        onclick: () => go({ level, page: 0 }),
      }, title, h("b", {}, count(number)))));
  }

  function remember(row) {
    const key = `${row.topic}\n${row.subscription}`;
    const samples = history.get(key) ?? [];
    history.delete(key);
    history.set(key, samples);
    samples.push(row.messages >= 0 ? row.messages : row.entries);
    if (samples.length > SAMPLES) samples.shift();
    if (history.size > 400) history.delete(history.keys().next().value);
    return samples;
  }

  let typed = null;
  const stop = () => {
    clearTimeout(typed);
    poller.stop();
  };
  stop.again = (next) => {
    const found = read(next);
    if (frame.search.value !== found.search && document.activeElement !== frame.search) {
      frame.search.value = found.search;
    }
    take(found);
    window.scrollTo(0, 0);
  };
  stop.search = (words) => {
    clearTimeout(typed);
    typed = setTimeout(() => go({ search: words.trim(), page: 0 }, true), 150);
  };
  return stop;
}

function history_replace(address) {
  history.replaceState(null, "", address);
}

function read(query) {
  return {
    search: query.get("search") ?? "",
    sort: query.get("sort") ?? "trouble",
    reverse: query.get("reverse") === "1",
    level: query.get("level") ?? "",
    page: Math.max(0, Number.parseInt(query.get("page") ?? "0", 10) || 0),
  };
}

function makeRow(row) {
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
  fill(place, topicName(row.topic), row.partitions ? ` · ${row.partitions} partitions` : null);
  const element = h("tr", {}, h("td", { class: "name" }, h("div", {}, dot, h("div", {}, link, words))), Object.values(cells));
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a, button") && !getSelection().toString()) location.hash = link.getAttribute("href");
  });
  let said = "";
  element.update = (now, samples) => {
    const level = LEVELS[now.trouble];
    element.className = level;
    dot.setAttribute("aria-label", level);
    if (said !== now.sentence) fill(words, sentence((said = now.sentence)));
    const known = now.messages >= 0;
    text(messages, known ? count(now.messages) : "");
    text(entries, now.entries && (!known || now.entries !== now.messages)
      ? plural(now.entries, "entry", "entries") : "");
    text(cells.oldest, now.oldestSeconds >= 0 && now.entries ? duration(now.oldestSeconds) : "");
    text(growth, growthOf(now));
    growth.className = `growth ${now.growth > 0.5 ? "up" : now.growth < -0.5 ? "down" : ""}`;
    line.draw(samples);
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
