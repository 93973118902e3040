// Elements (a broker's data becomes text, never HTML), formatting, and dialogs.

import { BASE } from "./api.js";

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "tabIndex", "htmlFor", "className"]);

export function h(tag, attributes, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "href" && !/^[#/]/.test(value)) throw new Error("links lead nowhere else");
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Sets an element's text only if it differs: this saves painting and keeps a selection.
export function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

// Keeps the elements of rows that stay, in the order of the rows.
export function keyed(parent, rows, key, make, update) {
  const known = parent.rowsByKey ?? (parent.rowsByKey = new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const row of rows) {
    const name = key(row);
    wanted.add(name);
    let element = known.get(name);
    if (!element) {
      element = make(row);
      known.set(name, element);
    }
    update(element, row);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of known) {
    if (!wanted.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
}

export const panel = (title, small, ...content) =>
  h("section", { class: "panel" }, h("h2", {}, title, small ? h("small", {}, small) : null), content);

export const button = (words, act, attributes) => h("button", { type: "button", onclick: act, ...attributes }, words);
export const link = (href, words, kind = "link") => h("a", { class: kind, href }, words);
export const faint = (...words) => h("p", { class: "none" }, words);

// The head of a page: the way to it, its title, a sentence, and its actions.
export const head = (crumbs, title, said, ...actions) => h("div", { class: "head" },
  h("div", {}, crumbs.length ? h("p", { class: "crumbs" }, crumbs.map((each) => [each, " / "])) : null, title.localName === "h1" ? title : h("h1", { tabIndex: -1 }, title), said),
  actions.length ? h("div", { class: "actions" }, actions) : null);

// A table that scrolls sideways, also by keyboard, and `nothing` instead of it while it has no rows. `read(row)` returns
// the contents of a row's cells; `name(row)` makes that of a first one, once: a link keeps the focus.
// Rows that are `fixed` by their key are made once.
export function table(titles, { key, name, read, nothing = "", fixed = false }) {
  const body = h("tbody");
  const scroll = h("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, h("tr", {}, titles.map((each) => h("th", { scope: "col" }, each)))), body));
  const none = faint(nothing);
  const make = (row) => h("tr", {}, titles.map((_, at) => h("td", {}, at ? null : name?.(row))));
  const update = (element, row) => {
    if (fixed && element.made) return;
    element.made = true;
    read(row).forEach((value, at) => {
      const cell = element.cells[name ? at + 1 : at];
      if (typeof value === "string") text(cell, value);
      else fill(cell, value);
    });
  };
  return {
    element: [none, scroll], scroll, none,
    show(rows) {
      none.hidden = rows.length > 0;
      scroll.hidden = !rows.length;
      keyed(body, rows, key, make, update);
    },
  };
}

export const pairs = (found) => found.map(([title, ...value]) => [h("dt", {}, title), h("dd", {}, value)]);
export const fact = (title, value, small) => h("div", {}, h("dt", {}, title), h("dd", {}, value, small ? h("small", {}, small) : null));

export const skeleton = () => h("div", { class: "skeletons", "aria-hidden": "true" }, Array.from({ length: 4 }, () => h("i")));

// --- numbers, times, names and commands ---
const PLAIN = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

const UNKNOWN = "·";

export function count(number) {
  if (number === undefined || number === null || number < 0) return UNKNOWN;
  return number < 1e6 ? PLAIN.format(number) : COMPACT.format(number);
}

export const plural = (number, one) => `${count(number)} ${number === 1 ? one : `${one.replace(/([^aeo])y$/, "$1ie")}s`}`;

export function rate(number) {
  if (number === undefined || number === null) return UNKNOWN;
  if (Math.abs(number) < 0.05) return "0";
  if (Math.abs(number) < 10) return number.toFixed(1);
  return Math.abs(number) < 1e5 ? PLAIN.format(number) : COMPACT.format(number);
}

export const perSecond = (number) => (number === undefined || number === null ? UNKNOWN : `${rate(number)}/s`);

export function bytes(number) {
  if (number === undefined || number === null || number < 0) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at++;
  }
  return `${at && number < 100 && number % 1 ? number.toFixed(1) : PLAIN.format(number)} ${units[at]}`;
}

// Sizes that are compared: in bytes where they would read alike.
export function distinctBytes(one, other) {
  const alike = one !== other && bytes(one).replace(".0", "") === bytes(other).replace(".0", "");
  return [one, other].map((each) => (alike ? `${PLAIN.format(each)} B` : bytes(each)));
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null || seconds < 0) return UNKNOWN;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds < 100 * 86400) return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
  return seconds < 730 * 86400 ? `${Math.round(seconds / 2629800)} months` : `${count(Math.round(seconds / 31557600))} years`;
}

export const SPANS = [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]];

export function clock(milliseconds) {
  const moment = new Date(milliseconds || NaN);
  if (Number.isNaN(moment.getTime())) return UNKNOWN;
  return Math.abs(Date.now() - milliseconds) < 86400e3 ? CLOCK.format(moment) : DAY.format(moment);
}

export function ago(milliseconds, now) {
  return milliseconds ? `${duration(Math.max(0, (now - milliseconds) / 1000))} ago` : "never";
}

export function pretty(data) {
  try {
    return JSON.stringify(JSON.parse(data), null, 2);
  } catch {
    return data;
  }
}

// A sentence of the broker, with times in the browser's time zone.
export const sentence = (words) => String(words).split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/)
  .map((each, at) => (at % 2 ? h("time", { datetime: each, title: each }, clock(Date.parse(each))) : each));

export const sentenceText = (words) =>
  sentence(words).map((each) => (each instanceof Node ? each.textContent : each)).join("");

export function nameOf(topic) {
  const [domain, rest = ""] = topic.split("://");
  const [tenant, namespace, ...local] = rest.split("/");
  return { domain, tenant, namespace, local: local.join("/") };
}

// A name as a segment of a URL. Browsers resolve "." and "..", in any encoding, to another resource.
export function part(name) {
  if (name === "" || name === "." || name === "..") {
    throw new Error(`the name “${name}” cannot be used in a browser's URL: use the command line`);
  }
  return encoded(name);
}

const encoded = (name) => encodeURIComponent(name.toWellFormed ? name.toWellFormed() : name);

export function topicPath(topic) {
  const { domain, tenant, namespace, local } = nameOf(topic);
  return `/admin/v2/${[domain, tenant, namespace, local].map(part).join("/")}`;
}

export function schemaPath(topic) {
  const { tenant, namespace, local } = nameOf(topic.replace(/-partition-\d+$/, ""));
  return `/admin/v2/schemas/${[tenant, namespace, local].map(part).join("/")}`;
}

export const topicLink = (topic) => `#/t/${encoded(topic)}`;
export const topicsLink = (words) => `#/topics?${new URLSearchParams(words)}`;
export const namespaceLink = (namespace) => `#/n/${namespace.split("/").map(encoded).join("/")}`;
export const subscriptionLink = (topic, subscription) => `#/s/${encoded(topic)}/${encoded(subscription)}`;

export function topicName(topic) {
  const { domain, tenant, namespace, local } = nameOf(topic);
  return [
    domain === "persistent" ? null : h("span", { class: "domain" }, "non-persistent "),
    h("span", { class: "where" }, `${tenant}/${namespace}/`),
    h("span", { class: "local" }, local),
  ];
}

// Names and colours of the levels of trouble, as geminga.diagnosis numbers them.
export const STATES = {
  6: "Producers stopped", 5: "Stopped and growing", 4: "Stopped", 3: "Worth a look", 2: "Moving", 1: "Idle",
};

export const LEVELS = ["quiet", "quiet", "moving", "watch", "stopped", "stopped", "stopped"];

// Commands for a terminal carry the address of this broker where it is not the default, or its saved name.
const IS_DEFAULT = location.protocol === "http:" && ["127.0.0.1:8080", "localhost:8080"].includes(location.host);
export const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);
const ADDRESS = BASE ? ` --context ${BASE.split("/")[2]}` : IS_DEFAULT ? "" : ` --admin-url ${location.origin}`;

export const shortTopic = (topic) => topic.replace(/^persistent:\/\//, "");

export const option = (name, value) => (value ? ` ${name} ${quoted(String(value))}` : "");

// Options are quoted already; with a name that begins with "-" they come first, and the names follow "--".
export function shell(verb, names, options = "") {
  const named = names.map(quoted).join(" ");
  const parts = names.some((each) => each.startsWith("-")) ? [options.trim(), "--", named] : [named, options.trim()];
  return ["geminga", verb, ...parts].filter(Boolean).join(" ");
}

// The address follows the options of each command, and changes nothing in quotes: a name may contain " && ".
const ONE = /(?:'[^']*'|"[^"]*"|(?! && )[^'"])+/g;
const END = /^((?:'[^']*'|"[^"]*"|[^'"])*?)( -- |$)/;

export const pasted = (words, address = ADDRESS) => (/^geminga (?!store|mirror)/.test(words)
  ? words.replace(ONE, (one) => one.replace(END, (_, before, end) => before + address + end)) : words);

export const command = (words) => h("code", {}, pasted(words));

// --- dialogs: fields, and one action, whose effect and command are shown first ---
const WAIT_MS = 250;

export function dialog(title, content, { action, done = () => {}, danger = false } = {}) {
  let confirmed = false;
  const form = h("form", { method: "dialog" },
    h("h2", {}, title),
    content,
    h("footer", {},
      button(action ? "Cancel" : "Close", () => box.close(), { class: "quiet" }),
      action ? h("button", { type: "submit", class: danger ? "danger" : "primary" }, action) : null),
  );
  const box = h("dialog", {}, form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    confirmed = true;
    box.close();
  });
  box.addEventListener("close", () => {
    box.remove();
    done(confirmed);
  });
  document.getElementById("dialogs").append(box);
  box.showModal();
  return box;
}

// A field by its label and attributes. Besides those of an input: `options` ([value, words] each) make a choice,
// `units` ([name, size] each) an amount, which is `none` while empty, `tag` another element; while `when(values)` is
// false it is hidden and may hold anything.
function field(id, [label, { options, units, none, value, when, tag = options ? "select" : "input", ...attributes } = {}]) {
  const choice = (tag, options, attributes) => h(tag, attributes, options?.map(([value, words = value]) => h("option", { value }, words)));
  const input = choice(tag, options, { id, autocomplete: "off", spellcheck: "false", ...attributes });
  const words = h("label", { htmlFor: id }, label);
  let unit = null;
  let read = () => input.value;
  if (attributes.type === "checkbox") {
    read = () => input.checked;
    return { element: h("p", {}, input, " ", words), read, when };
  }
  if (units) {
    const [name, size] = value > 0 ? units.find(([, each]) => value % each === 0) ?? units.at(-1) : units[0];
    Object.assign(input, { type: "number", min: 0, step: "any" });
    value = value > 0 ? value / size : value === 0 && none !== 0 ? 0 : "";
    unit = choice("select", units.map(([each]) => [each]), { "aria-label": `${label}, unit`, hidden: units.length === 1 });
    unit.value = name;
    read = () => (input.value === "" ? none : Math.round(Number(input.value) * units.find(([each]) => each === unit.value)[1]));
  }
  if (value !== undefined) input.value = value;
  return { element: h("div", { class: unit ? "fields" : "field" }, words, input, unit), read, when };
}

// A dialog of an action. `fields` by name; `preview(values)` returns or resolves to {text, command}, or throws what
// forbids the action; `run(values)` resolves to the words that report its success.
export function ask(title, { content, fields = {}, action, danger = false, preview, run, done = () => {} }) {
  const made = Object.entries(fields).map(([name, of]) => [name, field(`field-${name}`, of)]);
  const values = () => Object.fromEntries(made.map(([name, each]) => [name, each.read()]));
  const said = h("div", { class: "preview", role: "status" }, "…");
  let waiting = null;
  let asked = 0;
  const box = dialog(title, [content, made.map(([, each]) => each.element), said], {
    action, danger,
    async done(confirmed) {
      clearTimeout(waiting);
      asked++;
      if (!confirmed) return;
      try {
        toast((await run(values())) ?? `Done: ${title.toLowerCase()}`);
      } catch (error) {
        toast(error.message, "bad");
      }
      done();
    },
  });
  const go = box.querySelector("button[type=submit]");
  const arrange = () => {
    const now = values();
    for (const [, { element, when }] of made) {
      if (!when) continue;
      element.hidden = !when(now);
      for (const each of element.querySelectorAll("input, select")) each.disabled = element.hidden;
    }
  };
  const show = async () => {
    const turn = ++asked;
    if (!box.querySelector("form").checkValidity()) return fill(said, "…");
    try {
      const { text, command: equal } = await preview(values());
      if (turn !== asked) return;
      fill(said, sentence(text.charAt(0).toUpperCase() + text.slice(1)), ".", equal ? command(equal) : null);
      go.disabled = false;
    } catch (error) {
      if (turn === asked) fill(said, h("span", { class: "refused" }, error.message));
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(waiting);
    asked++;
    go.disabled = true;
    arrange();
    waiting = setTimeout(show, WAIT_MS);
  });
  go.disabled = true;
  arrange();
  show();
}

let gone = null;

export function toast(words, kind = "") {
  document.querySelector(".toast")?.remove();
  clearTimeout(gone);
  const line = h("p", { class: `toast ${kind}`, role: "status" }, words);
  document.getElementById("dialogs").append(line);
  gone = setTimeout(() => line.remove(), 6000);
}
