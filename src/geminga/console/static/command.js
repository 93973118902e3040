// Commands for a terminal: they carry the address of this broker where it is not the default.

import { h } from "./dom.js";

const IS_DEFAULT = location.protocol === "http:" && ["127.0.0.1:8080", "localhost:8080"].includes(location.host);
const ADDRESS = IS_DEFAULT ? "" : ` --admin-url ${location.origin}`;

const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);
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
