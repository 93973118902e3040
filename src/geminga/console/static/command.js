// Commands for a terminal: they carry the address of this broker where it is not the default.

import { h } from "./dom.js";

const IS_DEFAULT = location.protocol === "http:" && ["127.0.0.1:8080", "localhost:8080"].includes(location.host);
const ADDRESS = IS_DEFAULT ? "" : ` --admin-url ${location.origin}`;

export const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);
export const shortTopic = (topic) => topic.replace(/^persistent:\/\//, "");

export const pasted = (words) => (/^geminga (?!store)/.test(words) ? words.split(" && ").map((each) => each + ADDRESS).join(" && ") : words);

export const command = (words) => h("code", {}, pasted(words));
