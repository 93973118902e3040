// A page with one long list: its address, order, filter and pages, and rows that stay under the pointer.

import { Poller, get } from "./api.js";
import { fill, h, keyed } from "./dom.js";
import { count } from "./format.js";

const EVERY_MS = 2000;
const PAGE = 50;
const SKELETONS = 8;
const last = new Map(); // the last answer by address: going back shows it at once

export class List {
  // `of`: {base, path, columns, order, key, makeRow, label, show, empty}; columns: [name, title, meaning, sort].
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
    const words = new URLSearchParams();
    if (state.search) words.set("search", state.search);
    if (state.namespace) words.set("namespace", state.namespace);
    if (state.sort !== this.of.order) words.set("sort", state.sort);
    if (state.reverse) words.set("reverse", "1");
    if (state.level) words.set("level", state.level);
    if (state.page) words.set("page", state.page);
    return words.size ? `${this.of.base}?${words}` : this.of.base;
  }

  head(name, title, meaning, sort) {
    if (!sort) return h("th", { class: name, scope: "col", title: meaning || null }, title);
    const button = h("button", { type: "button", title: meaning || null, onclick: () => this.choose(sort) }, title);
    return h("th", { class: name, scope: "col", "data-sort": sort }, button);
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
    keyed(this.body, this.shown, this.of.key, this.of.makeRow, (element, row) => element.update(row));
    const pages = Math.ceil(found.matching / PAGE);
    const { page } = this.state;
    fill(this.pager, pages <= 1 ? null : [
      h("button", { type: "button", disabled: page <= 0, onclick: () => this.go({ page: page - 1 }) }, "← Previous"),
      h("span", {}, `${count(found.offset + 1)} to ${count(found.offset + found.rows.length)} of ${count(found.matching)}`),
      h("button", { type: "button", disabled: page >= pages - 1, onclick: () => this.go({ page: page + 1 }) }, "Next →")]);
    this.blank.hidden = found.rows.length > 0;
    this.table.hidden = !found.rows.length;
    if (!found.rows.length) fill(this.blank, this.of.empty(found, this.state));
    this.frame.ready();
  }

  // The parts of the page's life that the frame calls.
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

// A row whose first link is also what a click beside it opens.
export function opens(element, link) {
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a, button") && !getSelection().toString()) location.hash = link.getAttribute("href");
  });
  return element;
}
