// The messages of a topic, of all its partitions: searched or live, opened and published.

import { get, post } from "./api.js";
import { bytesOf, decode, hexDump, isEditable, isEncoded, jsonText, textOf } from "./decode.js";
import { ask, button, bytes, clock, count, dialog, faint, fill, h, option, plural, schemaPath, shell, shortTopic, toast, topicPath } from "./dom.js";

const PAGE = 50;
const FILTERED = 500; // messages of one request, if most are left out here
const TAIL_MS = 1000;
const AGAIN_MS = 150;
const TAIL_SHOWN = 100;
const PARTITIONS_MAX = 64;
const FROM = [["latest", "newest first"], ["earliest", "from the oldest"], ["time", "from a time"], ["id", "from a message"], ["live", "live"]];

// Conditions on fields of the decoded value.
const TOKEN = /\s*(?:([()]|(?:and|or|not)(?![^\s()]))|([\w.$-]+)\s*(!=|>=|<=|=|>|<|~)\s*("[^"]*"|[^\s"()]+))/y;
const CODE = { and: "&&", or: "||", not: "!" };
const HELP = "Write conditions on fields, such as city~Be (amount>=100 or not paid=true): = != > < >= <=, ~ for “contains”; or a program, such as return value.amount > 100.";
const FILTER = "/console/filter.js";
const FILTER_MS = 5000; // longest time for the messages of one request
const trusted = globalThis.trustedTypes?.createPolicy("filter", { createScriptURL: () => FILTER });

// Returns the program of a filter, and whether it was made of conditions.
function programOf(text) {
  let [code, end, first] = ["", (TOKEN.lastIndex = 0), true];
  for (let match; (match = TOKEN.exec(text)); end = TOKEN.lastIndex) {
    const [, word, path, operator, wanted] = match;
    if (!first && (!word || word === "(" || word === "not")) code += "&&";
    code += CODE[word] ?? word ?? `meets(value,${JSON.stringify([path, operator, wanted.replace(/^"|"$/g, "")]).slice(1, -1)})`;
    first = word && word !== ")";
  }
  if (!text.slice(end).trim()) return [code && `if (!(value instanceof Object)) return false; return ${code}`, true];
  if (!/\breturn\b/.test(text)) throw new Error(HELP);
  return [text, false];
}

// Starts a program, which `signal` ends. The result resolves messages to [which to show, the first error].
async function filterBy([program, isCondition], signal) {
  const worker = new Worker(trusted?.createScriptURL("") ?? FILTER);
  let last = Promise.resolve();
  let end = () => worker.terminate();
  signal.onabort = () => end(signal.reason);
  worker.onerror = () => end(new Error("The filter cannot be loaded."));
  // One run at a time, each with its own limit.
  const run = (messages) => (last = last.then(() => new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const { port1, port2 } = new MessageChannel();
    end = (error) => {
      clearTimeout(limit);
      worker.terminate();
      reject(error);
    };
    const limit = messages.length && setTimeout(end, FILTER_MS, new Error(`The program was stopped: it took more than ${FILTER_MS / 1000} seconds for ${plural(messages.length, "message")}.`));
    port1.onmessage = ({ data }) => {
      clearTimeout(limit);
      port1.close();
      const failed = String(data?.[1]).slice(0, 300);
      if (data?.[0]) resolve([data[0], failed]);
      else end(new Error(isCondition ? HELP : `The program cannot be run: ${failed}`));
    };
    worker.postMessage([program, messages], [port2]);
  })));
  await run([]);
  return run;
}

export class Messages {
  // `query`: the filter in the address; `parts`: the topic's partitions, or the topic itself.
  constructor(topic, query, parts) {
    this.topic = topic;
    this.parts = parts;
    this.book = new SchemaBook(topic);
    const field = (name, attributes) => h("input", { value: query.get(name) ?? "", autocomplete: "off", ...attributes });
    this.from = h("select", { "aria-label": "From" }, FROM.map(([value, words]) => h("option", { value }, words)));
    this.from.value = query.get("from") ?? "latest";
    this.time = field("time", { type: "datetime-local", step: 1, "aria-label": "Time" });
    this.until = field("until", { type: "datetime-local", step: 1, "aria-label": "Until" });
    this.id = field("id", { placeholder: "ledger:entry", pattern: "\\d+:\\d+", "aria-label": "Message" });
    this.key = field("key", { type: "search", placeholder: "key", "aria-label": "Key" });
    this.words = field("text", { type: "search", placeholder: "text in payload, key or property", "aria-label": "Text in payload, key or property" });
    this.where = h("textarea", { rows: 1, value: query.get("where") ?? "", spellcheck: "false", placeholder: "fields: city=Bern, or: return value.amount > 100",
      "aria-label": "Conditions on fields, or a program", title: "A program in JavaScript: it has value, key, properties, partition, id and publishTime. Shift+Enter begins a line.",
      onkeydown: (event) => event.key === "Enter" && !event.shiftKey && (event.preventDefault(), form.requestSubmit()) });
    this.program = [];
    this.partition = h("select", { "aria-label": "Partition", hidden: parts.length < 2 }, h("option", { value: "" }, parts.length > PARTITIONS_MAX ? `the first ${PARTITIONS_MAX} partitions` : "all partitions"),
      parts.map((_, at) => h("option", { value: at }, `partition ${at}`)));
    this.partition.value = query.get("partition") ?? "";
    this.act = h("button", { type: "submit", class: "primary" }, "Search");
    this.more = button("Older", () => this.search(true), { hidden: true });
    this.said = h("p", { class: "none", role: "status" }, "…");
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "Searched", hidden: true });
    this.list = h("ol", { class: "messages" });
    const form = h("form", { class: "filters" }, this.from, this.time, h("span", { class: "until", hidden: true }, "until"), this.until, this.id, this.partition, this.key, this.words, this.where, this.act);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.cancel();
      else this.begin();
    });
    this.from.addEventListener("change", () => this.begin());
    this.partition.addEventListener("change", () => this.begin());
    this.element = h("section", { class: "panel", id: "messages" },
      h("h2", {}, "Messages", h("small", {}, "nothing is consumed")), form,
      h("p", { class: "progress" }, this.progress, this.said),
      h("div", { class: "tail", tabIndex: 0, role: "group", "aria-label": "Messages" }, this.list), h("nav", { class: "pager", "aria-label": "More messages" }, this.more));
    this.running = null;
    this.timer = null;
    this.form = form;
  }

  get live() {
    return this.from.value === "live";
  }

  chosenParts() {
    return (this.partition.value ? [this.parts[Number(this.partition.value)]] : this.parts).slice(0, PARTITIONS_MAX);
  }

  // Writes the filter into the address, so that it can be shared.
  remember() {
    const words = new URLSearchParams();
    for (const [name, element] of Object.entries({ from: this.from, time: this.time, until: this.until, id: this.id, partition: this.partition, key: this.key, text: this.words, where: this.where })) {
      if (element.value && !element.hidden && !(name === "from" && element.value === "latest")) words.set(name, element.value);
    }
    const [path] = location.hash.split("?");
    history.replaceState(history.state, "", words.size ? `${path}?${words}` : path);
  }

  begin(remember = true) {
    this.cancel();
    this.time.hidden = this.until.hidden = this.from.value !== "time";
    this.form.querySelector(".until").hidden = this.time.hidden;
    this.id.hidden = this.from.value !== "id";
    if (remember) this.remember();
    fill(this.list);
    this.more.hidden = true;
    this.more.textContent = this.from.value === "latest" ? "Older" : "Newer";
    try {
      this.program = programOf(this.where.value);
    } catch (error) {
      return void (this.said.textContent = error.message);
    }
    if (this.live) return this.follow();
    if (this.from.value === "time" && !this.time.value) return void (this.said.textContent = "Choose a time, then Search.");
    if (this.from.value === "id" && !this.id.value) return void (this.said.textContent = "Give a message's id, then Search.");
    this.cursors = this.chosenParts().map((topic) => ({ topic, next: "", left: null, found: [] }));
    return this.search(false);
  }

  question(cursor) {
    const moment = (element) => (element.value && !element.hidden ? new Date(element.value).getTime() : "");
    return {
      from: this.from.value === "time" ? moment(this.time) : this.from.value === "id" ? this.id.value.trim() : this.from.value,
      older: this.from.value === "latest" || null, after: cursor.next, until: moment(this.until),
      key: this.key.value, text: this.words.value, count: this.program[0] ? FILTERED : PAGE,
    };
  }

  // Begins what `cancel` ends: a search or a live tail.
  start(words) {
    this.cancel();
    this.running = new AbortController();
    this.act.textContent = words;
    this.failed = "";
    this.shows = null;
    return this.running;
  }

  async matching(messages, topic, signal) {
    if (!this.program[0]) return messages;
    this.shows ??= filterBy(this.program, signal);
    const given = await Promise.all(messages.map(async (each) => {
      if (each.problem) return null;
      const { key, properties = {}, publishTime } = each;
      let value = null;
      try {
        const payload = bytesOf(each.payload);
        const whole = each.cut ? bytesOf((await get(`${topicPath(topic)}/message/${each.id}`, { batch: each.batchIndex })).payload) : payload;
        if (!each.null) value = decode(whole, await this.book.of(each), false);
        value = JSON.parse(value);
      } catch { /* a text, or gone */ }
      return { value, key, properties, publishTime, partition: Number(partitionOf(topic) ?? -1), id: placeOf(each) };
    }));
    const [shown, failed] = await (await this.shows)(given);
    this.failed ||= failed && ` The program failed for some: ${failed}`;
    return messages.filter((_, at) => shown[at]);
  }

  // Reads until a page is full. Of each partition some are kept back: the next page may need them.
  async search(further) {
    const running = this.start("Stop");
    this.more.hidden = true;
    const older = this.from.value === "latest";
    let shown = 0;
    let examined = 0;
    const report = () => {
      const left = this.cursors.reduce((sum, each) => sum + (each.left ?? 0), 0);
      this.progress.hidden = !left;
      this.progress.value = examined / Math.max(1, examined + left);
      this.said.textContent = `${plural(this.list.children.length, "message")} found, ${count(examined)} entries searched${left ? `, ${count(left)} to go` : ""} …`;
    };
    try {
      while (shown < PAGE) {
        const open = this.cursors.filter((each) => each.left !== 0 && !each.found.length);
        if (open.length) {
          await Promise.all(open.map(async (cursor) => {
            const found = await get(`${topicPath(cursor.topic)}/messages`, this.question(cursor), running.signal);
            cursor.next = found.next;
            cursor.left = found.left;
            cursor.found.push(...await this.matching(found.messages, cursor.topic, running.signal));
            examined += found.examined;
          }));
          if (running.signal.aborted) return;
          report();
          continue;
        }
        const ready = this.cursors.filter((each) => each.found.length);
        if (!ready.length) break;
        ready.sort((a, b) => (a.found[0].publishTime - b.found[0].publishTime) * (older ? -1 : 1));
        this.list.append(await messageItem(ready[0].found.shift(), this.book, ready[0].topic));
        shown++;
      }
      const left = this.cursors.some((each) => each.found.length || each.left);
      this.more.hidden = !left;
      const number = plural(this.list.children.length, "message");
      this.said.textContent = (this.list.children.length || further ? left ? `${number}, and there are more.` : `${number}: that is all.`
        : this.key.value || this.words.value || this.program[0] ? `No message matches; ${count(examined)} entries were searched.` : "There is no message here.") + this.failed;
    } catch (error) {
      if (error.name !== "AbortError") this.said.textContent = error.message;
    } finally {
      if (this.running === running) this.ended();
    }
  }

  ended() {
    this.running.abort(); // ends the worker of its program, too
    this.running = null;
    this.progress.hidden = true;
    this.act.textContent = "Search";
  }

  // Stop: what was found stays.
  cancel() {
    clearTimeout(this.timer);
    if (!this.running) return;
    this.said.textContent = `Stopped: ${plural(this.list.children.length, "message")} so far.`;
    this.more.hidden = this.live;
    this.ended();
  }

  // New messages as they are published, the newest first.
  async follow() {
    const running = this.start("Pause");
    const next = new Map();
    this.said.textContent = "Waiting for messages …";
    const step = async () => {
      let behind = 0;
      let missed = 0;
      try {
        for (const topic of this.chosenParts()) {
          if (document.hidden) break;
          const found = await get(`${topicPath(topic)}/tail`, { from: next.get(topic), count: TAIL_SHOWN, text: this.words.value, key: this.key.value }, running.signal);
          next.set(topic, found.next);
          behind += found.behind;
          missed += found.skipped + (found.notShown ?? 0);
          for (const each of await this.matching(found.messages.slice(-TAIL_SHOWN), topic, running.signal)) this.list.prepend(await messageItem(each, this.book, topic));
          if (running.signal.aborted) return;
        }
        while (this.list.children.length > TAIL_SHOWN) this.list.lastElementChild.remove();
        this.said.textContent = missed ? `Too many to show: ${count(missed)} messages were skipped.`
          : behind > 1 ? `${count(behind)} entries are still to be searched.`
            : (this.list.children.length ? "The newest first." : "Waiting for messages …") + this.failed;
      } catch (error) {
        if (error.name === "AbortError") return;
        this.said.textContent = error.message;
        if (error.status === undefined) return void this.ended(); // the program's
      }
      this.timer = setTimeout(step, behind > 1 ? AGAIN_MS : TAIL_MS);
    };
    await step();
  }

  stop() {
    this.cancel();
  }
}

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

  // The schema of a message's payload; a masked one is JSON.
  of(message) {
    return message.masked ? null : this.version(message.schemaVersion ?? -1);
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
  const { cut } = message;
  let schema = null;
  if (!message.problem && message.payload !== undefined) schema = await book.of(message);
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
      topic && !message.problem ? button(place, () => openMessage(message, book, topic), { class: "open", title: "Open", "aria-label": `Open ${placeOf(message)}` }) : place),
    h("div", {},
      message.problem ? h("p", { class: "problem" }, message.problem) : null,
      message.problem === "encrypted" ? null : h("div", { class: "value" }, value),
      h("p", { class: "meta" }, meta)));
}

async function openMessage(message, book, topic) {
  const shown = h("pre", { tabIndex: 0, class: "whole" }, "…");
  const views = h("div", { class: "views", role: "group", "aria-label": "Show as" });
  const box = dialog(`Message ${placeOf(message)}`, [
    faint([message.key ? `key ${message.key}` : "no key", message.publishTime ? `published ${clock(message.publishTime)}` : "",
      `from ${message.producer}`, bytes(message.size)].filter(Boolean).join(" · ")), views, shown]);
  box.classList.add("wide");
  try {
    const whole = await get(`${topicPath(topic)}/message/${message.id}`, { batch: message.batchIndex });
    const payload = bytesOf(whole.payload);
    const schema = await book.of(whole);
    const texts = { Value: () => (whole.null ? "null" : decode(payload, schema, false)), Text: () => textOf(payload), JSON: () => jsonText(payload), Hexadecimal: () => hexDump(payload) };
    const choose = (name) => {
      for (const each of views.querySelectorAll("[aria-pressed]")) each.setAttribute("aria-pressed", String(each.textContent === name));
      fill(shown, texts[name]());
    };
    const copy = () => navigator.clipboard.writeText(shown.textContent).then(() => toast("Copied"), () => toast("the browser does not allow copying", "bad"));
    fill(views, Object.keys(texts).map((name) => button(name, () => choose(name), { "aria-pressed": "false" })),
      h("span", { class: "gap" }), button("Copy", copy), button("Download", () => download(payload, placeOf(message))),
      whole.null || whole.masked || !(isEncoded(schema) || isEditable(payload)) ? null : button("Publish again", () => produce(topic.replace(/-partition-\d+$/, ""), undefined, { payload: isEncoded(schema) ? texts.Value() : textOf(payload), key: message.key, properties: message.properties })));
    choose("Value");
  } catch (error) {
    fill(shown, error.message);
  }
}

function download(payload, name) {
  const address = URL.createObjectURL(new Blob([payload]));
  Object.assign(document.createElement("a"), { href: address, download: `message-${name.replaceAll(":", "-")}.bin` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// Publishes one message, with the text, key and properties of `like` to begin with.
export function produce(topic, done, like = {}) {
  const named = (properties) => properties.split("\n").filter(Boolean).map((each) => each.split(/=(.*)/s).slice(0, 2));
  const send = (preview, { payload, key, properties }) => {
    const wrong = named(properties).find(([name, value]) => !name || value === undefined);
    if (wrong) throw new Error(`“${wrong.join("=")}” is not NAME=VALUE.`);
    return post("/console/api/publish", {}, { topic, preview, payload, key: key || null, properties: Object.fromEntries(named(properties)) });
  };
  ask("Publish a message", {
    fields: {
      payload: ["Value (JSON, if the topic has a schema)", { tag: "textarea", rows: 5, value: like.payload }], key: ["Key (may be empty)", { value: like.key }],
      properties: ["Properties, NAME=VALUE on each line (may be empty)", { tag: "textarea", rows: 2, value: Object.entries(like.properties ?? {}).map((each) => each.join("=")).join("\n") }],
    },
    action: "Publish", done,
    async preview(values) {
      const { type } = await send(true, values);
      const schema = type && !["BYTES", "STRING"].includes(type);
      return {
        text: `stores one message${schema ? `, encoded by the topic's schema (${type.toLowerCase()})` : ""}, which every subscription of the topic receives`,
        command: shell("produce", [shortTopic(topic), values.payload], option("--key", values.key) + named(values.properties).map((each) => option("-p", each.join("="))).join("") + (schema ? " --schema" : "")),
      };
    },
    run: async (values) => `Stored as ${(await send(false, values)).id}`,
  });
}
