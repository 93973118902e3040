// Messages as a list: time, value and producer. Values are decoded by the schema version of each message.

import { get } from "./api.js";
import { bytesOf, decode } from "./decode.js";
import { h } from "./dom.js";
import { bytes, clock, schemaPath } from "./format.js";

// The versions of a topic's schema, each requested once.
export class SchemaBook {
  constructor(topic) {
    this.path = schemaPath(topic);
    this.known = new Map();
  }

  version(number) {
    if (!this.known.has(number)) {
      const path = number < 0 ? `${this.path}/schema` : `${this.path}/schema/${number}`;
      this.known.set(number, get(path).catch((error) => {
        if (error.status !== 404) this.known.delete(number);
        return null;
      }));
    }
    return this.known.get(number);
  }

  newest() {
    this.known.delete(-1);
    return this.version(-1);
  }
}

export async function messageItem(message, book) {
  const payload = bytesOf(message.payload);
  const cut = payload.length < message.size;
  let schema = null;
  if (!message.problem && message.payload !== undefined) schema = await book.version(message.schemaVersion ?? -1);
  const meta = [];
  const tell = (name, value) => value !== undefined && value !== "" && meta.push(h("span", {}, `${name} `, h("b", {}, value), "  "));
  tell("key", message.key);
  for (const [name, value] of Object.entries(message.properties ?? {})) tell(`${name} =`, value);
  tell("from", message.producer);
  if (message.eventTime) tell("event", clock(message.eventTime));
  if (message.deliverAt) tell("not before", clock(message.deliverAt));
  if (message.size !== undefined) tell("size", bytes(message.size));
  const place = message.batchIndex === undefined ? message.id : `${message.id}:${message.batchIndex}`;
  const value = message.null ? "null" : message.payload === undefined ? "" : decode(payload, schema, cut) + (cut ? " …" : "");
  return h("li", {},
    h("span", { class: "when" }, message.publishTime ? clock(message.publishTime) : "", h("br"), h("span", { class: "mono" }, place)),
    h("div", {},
      message.problem ? h("p", { class: "problem" }, message.problem) : null,
      message.problem === "encrypted" ? null : h("div", { class: "value" }, value),
      h("p", { class: "meta" }, meta)));
}
