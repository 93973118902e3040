// Formatting of numbers, times, names and commands.

import { h } from "./dom.js";

const PLAIN = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

const UNKNOWN = "·";

export function count(number) {
  if (number === undefined || number === null || number < 0) return UNKNOWN;
  return number < 1e6 ? PLAIN.format(number) : COMPACT.format(number);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

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
  return `${at && number < 100 ? number.toFixed(1) : PLAIN.format(number)} ${units[at]}`;
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

// Units of time, for fields.
export const SPANS = [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]];

export function clock(milliseconds) {
  if (!milliseconds) return UNKNOWN;
  const moment = new Date(milliseconds);
  if (Number.isNaN(moment.getTime())) return UNKNOWN;
  return Math.abs(Date.now() - milliseconds) < 86400e3 ? CLOCK.format(moment) : DAY.format(moment);
}

export function ago(milliseconds, now) {
  return milliseconds ? `${duration(Math.max(0, (now - milliseconds) / 1000))} ago` : "never";
}

// JSON with line breaks; another text unchanged.
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

// Like `sentence`, but plain text instead of elements.
export const sentenceText = (words) =>
  sentence(words).map((each) => (each instanceof Node ? each.textContent : each)).join("");

// persistent://tenant/namespace/topic in its parts; `local` may hold anything.
export function nameOf(topic) {
  const [domain, rest = ""] = topic.split("://");
  const [tenant, namespace, ...local] = rest.split("/");
  return { domain, tenant, namespace, local: local.join("/") };
}

// A name as a segment of a URL. A name that browsers resolve as a path step (".", "..", in any encoding) is
// refused: the request would address another resource.
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

// A topic's name as elements: the local name, then tenant and namespace.
export function topicName(topic) {
  const { domain, tenant, namespace, local } = nameOf(topic);
  return [
    domain === "persistent" ? null : h("span", { class: "domain" }, "non-persistent "),
    h("span", { class: "where" }, `${tenant}/${namespace}/`),
    h("span", { class: "local" }, local),
  ];
}

// Names of the levels of trouble, by their numbers.
export const STATES = {
  6: "Producers stopped", 5: "Stopped and growing", 4: "Stopped", 3: "Worth a look", 2: "Moving", 1: "Idle",
};

// Colours of the levels of trouble, as geminga.diagnosis numbers them.
export const LEVELS = ["quiet", "quiet", "moving", "watch", "stopped", "stopped", "stopped"];

// Commands for a terminal: they carry the address of this broker where it is not the default.
const IS_DEFAULT = location.protocol === "http:" && ["127.0.0.1:8080", "localhost:8080"].includes(location.host);
const ADDRESS = IS_DEFAULT ? "" : ` --admin-url ${location.origin}`;

export const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);
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

export const pasted = (words, address = ADDRESS) => (/^geminga (?!store)/.test(words)
  ? words.replace(ONE, (one) => one.replace(END, (_, before, end) => before + address + end)) : words);

export const command = (words) => h("code", {}, pasted(words));
