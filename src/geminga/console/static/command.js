// Commands for a terminal: they carry the address of this broker where it is not the default.

import { h } from "./dom.js";

const IS_DEFAULT = location.protocol === "http:" && ["127.0.0.1:8080", "localhost:8080"].includes(location.host);
const ADDRESS = IS_DEFAULT ? "" : ` --admin-url ${location.origin}`;

export const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);
export const shortTopic = (topic) => topic.replace(/^persistent:\/\//, "");

// The address follows each command, and changes nothing in quotes: a name may contain " && ".
const PARTS = /'[^']*'|"[^"]*"| && |$/g;

export const pasted = (words, address = ADDRESS) => (/^geminga (?!store)/.test(words)
  ? words.replace(PARTS, (each) => (each === "" || each === " && " ? address + each : each)) : words);

export const command = (words) => h("code", {}, pasted(words));
