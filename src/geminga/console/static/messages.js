// Messages as a list: time, value and producer; and one message opened as text, JSON or hexadecimal.

import { get } from "./api.js";
import { bytesOf, decode, hexDump, jsonText, textOf } from "./decode.js";
import { dialog, toast } from "./dialog.js";
import { fill, h } from "./dom.js";
import { bytes, clock, schemaPath, topicPath } from "./format.js";

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

const placeOf = (message) => (message.batchIndex === undefined ? message.id : `${message.id}:${message.batchIndex}`);
const partitionOf = (topic) => /-partition-(\d+)$/.exec(topic)?.[1];

// `topic` is the topic or partition that stores the message.
export async function messageItem(message, book, topic) {
  const payload = bytesOf(message.payload);
  const cut = payload.length < message.size;
  let schema = null;
  if (!message.problem && message.payload !== undefined) schema = await book.version(message.schemaVersion ?? -1);
  const meta = [];
  const tell = (name, value) => value !== undefined && value !== "" && meta.push(h("span", {}, `${name} `, h("b", {}, value), "  "));
  tell("key", message.key);
  for (const [name, value] of Object.entries(message.properties ?? {})) tell(`${name} =`, value);
  tell("from", message.producer);
  tell("partition", partitionOf(topic ?? ""));
  if (message.eventTime) tell("event", clock(message.eventTime));
  if (message.deliverAt) tell("not before", clock(message.deliverAt));
  if (message.size !== undefined) tell("size", bytes(message.size));
  const value = message.null ? "null" : message.payload === undefined ? "" : decode(payload, schema, cut) + (cut ? " …" : "");
  const place = h("span", { class: "mono" }, placeOf(message));
  return h("li", {},
    h("span", { class: "when" }, message.publishTime ? clock(message.publishTime) : "", h("br"),
      topic && !message.problem ? h("button", { type: "button", class: "open", title: "Open", "aria-label": `Open ${placeOf(message)}`, onclick: () => openMessage(message, book, topic) }, place) : place),
    h("div", {},
      message.problem ? h("p", { class: "problem" }, message.problem) : null,
      message.problem === "encrypted" ? null : h("div", { class: "value" }, value),
      h("p", { class: "meta" }, meta)));
}

async function openMessage(message, book, topic) {
  const shown = h("pre", { tabIndex: 0, class: "whole" }, "…");
  const views = h("div", { class: "views", role: "group", "aria-label": "Show as" });
  const box = dialog(`Message ${placeOf(message)}`, [
    h("p", { class: "none" }, [message.key ? `key ${message.key}` : "no key", message.publishTime ? `published ${clock(message.publishTime)}` : "",
      `from ${message.producer}`, bytes(message.size)].filter(Boolean).join(" · ")), views, shown]);
  box.classList.add("wide");
  try {
    const whole = await get(`${topicPath(topic)}/message/${message.id}`, { batch: message.batchIndex });
    const payload = bytesOf(whole.payload);
    const schema = await book.version(whole.schemaVersion ?? -1);
    const texts = { Value: () => (whole.null ? "null" : decode(payload, schema, false)), Text: () => textOf(payload), JSON: () => jsonText(payload), Hexadecimal: () => hexDump(payload) };
    const choose = (name) => {
      for (const each of views.querySelectorAll("[aria-pressed]")) each.setAttribute("aria-pressed", String(each.textContent === name));
      fill(shown, texts[name]());
    };
    const copy = () => navigator.clipboard.writeText(shown.textContent).then(() => toast("Copied"), () => toast("the browser does not allow copying", "bad"));
    fill(views, Object.keys(texts).map((name) => h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(name) }, name)),
      h("span", { class: "gap" }), h("button", { type: "button", onclick: copy }, "Copy"),
      h("button", { type: "button", onclick: () => download(payload, placeOf(message)) }, "Download"));
    choose("Value");
  } catch (error) {
    fill(shown, error.message);
  }
}

function download(payload, name) {
  const address = URL.createObjectURL(new Blob([payload]));
  const link = document.createElement("a");
  link.href = address;
  link.download = `message-${name.replaceAll(":", "-")}.bin`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
