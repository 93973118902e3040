// Actions on a subscription or topic. Each dialog shows the effect before the action is done.

import { call, get, post } from "./api.js";
import { ask, dialog } from "./dialog.js";
import { button, faint, fill, h } from "./dom.js";
import { SPANS, bytes, count, option, part, plural, pretty, quoted, schemaPath, shell, shortTopic, topicLink, topicPath } from "./format.js";
import { SchemaBook, messageItem } from "./messages.js";

const END = "9223372036854775807"; // as text: it exceeds JavaScript's integers

export const subscriptionPath = (topic, subscription) =>
  `${topicPath(topic)}/subscription/${part(subscription)}`;

// The position of a reset, by its fields.
function target({ kind, ago, time, message }) {
  if (kind === "message") return { message: message.trim() };
  if (kind === "earliest") return { message: "-1:-1" };
  if (kind === "latest") return { message: `${END}:${END}` };
  return { timestamp: kind === "ago" ? Date.now() - ago * 1000 : new Date(time).getTime() };
}

// Actions on a subscription: title, effect, fields by the names of its consumers, the broker's preview of values, and
// the request, by the subscription's path, values and query of that preview.
const ACTIONS = {
  redeliver: ["Redeliver", "Redelivers messages that consumers received and have not acknowledged.",
    (consumers) => ({ consumer: ["Of", { options: [["", "all consumers"], ...consumers.map((each) => [each])] }] }),
    ({ consumer }) => ["redeliver", { consumer }],
    (path, { consumer }) => post(`${path}/redeliver`, { consumer })],
  expire: ["Expire old messages", "Skips messages that are older than this.",
    () => ({ seconds: ["Older than", { units: SPANS, value: 86400, required: true }] }),
    ({ seconds }) => ["expire", { seconds }],
    (path, { seconds }) => post(`${path}/expireMessages/${seconds}`)],
  skip: ["Skip messages", "Skips the next unacknowledged messages, for this subscription.",
    () => ({ all: ["the whole backlog", { type: "checkbox" }],
      number: ["How many messages", { type: "number", min: 1, value: 1, required: true, when: (values) => !values.all }] }),
    ({ all, number }) => (all ? ["skip-all"] : ["skip", { count: number }]),
    (path, { all, number }) => (all ? post(`${path}/skip_all`) : post(`${path}/skip/${Number(number)}`, { unit: "messages" }))],
  reset: ["Reset position", "Resets the subscription: back, and messages are redelivered; forward, and messages are skipped.",
    () => ({
      kind: ["Where to", { options: [["ago", "to a time ago"], ["time", "to a time"], ["message", "to a message"], ["earliest", "to the oldest message"], ["latest", "to the end"]] }],
      ago: ["How long", { units: SPANS, value: 3600, required: true, when: ({ kind }) => kind === "ago" }],
      time: ["Time", { type: "datetime-local", step: 1, when: ({ kind }) => kind === "time",
        value: new Date(Date.now() - 36e5 - new Date().getTimezoneOffset() * 6e4).toISOString().slice(0, 19) }],
      message: ["Message", { placeholder: "ledger:entry", pattern: "\\d+:\\d+", when: ({ kind }) => kind === "message" }],
    }),
    (values) => ["reset", target(values)],
    (path, _values, { timestamp, message }) => {
      if (timestamp !== undefined) return post(`${path}/resetcursor/${timestamp}`);
      const [ledger, entry] = message.split(":");
      return post(`${path}/resetcursor`, {}, `{"ledgerId":${ledger},"entryId":${entry},"partitionIndex":-1,"batchIndex":-1}`);
    }],
};

export const actionButtons = (topic, subscription, consumers, done) => [
  button("Peek", () => peek(topic(), subscription), { "data-action": "peek" }),
  Object.keys(ACTIONS).map((name) => button(name.charAt(0).toUpperCase() + name.slice(1),
    () => perform(name, topic(), subscription, consumers(), done), { "data-action": name })),
  button("Delete", () => deleteSubscription(topic(), subscription))];

function perform(name, topic, subscription, consumers, done) {
  const [title, words, fields, preview, run] = ACTIONS[name];
  const path = subscriptionPath(topic, subscription);
  let query = {}; // of the last preview: "an hour ago" would mean a later position at the click
  ask(title, {
    content: h("p", {}, words), fields: fields(consumers), action: title, danger: name !== "redeliver", done,
    preview(values) {
      let what;
      [what, query = {}] = preview(values);
      return get(`${path}/preview/${what}`, query);
    },
    async run(values) {
      await run(path, values, query);
      return `Done: ${title.toLowerCase()} of ${subscription}`;
    },
  });
}

async function peek(topic, subscription) {
  const list = h("ol", { class: "messages" }, h("li", {}, "…"));
  const box = dialog(`Next messages of ${subscription}`, [
    faint("Unacknowledged messages, the oldest first. They are shown, not consumed."),
    h("div", { class: "tail" }, list),
  ]);
  box.classList.add("wide");
  try {
    const messages = await get(`${subscriptionPath(topic, subscription)}/open`, { count: 20 });
    const book = new SchemaBook(topic);
    fill(list, messages.length ? await Promise.all(messages.map((each) => messageItem(each, book)))
      : h("li", {}, "Everything is acknowledged."));
  } catch (error) {
    fill(list, h("li", { class: "refused" }, error.message));
  }
}

export function skipEntry(topic, subscription, id, done) {
  const [ledger, entry] = id.split(":");
  ask(`Skip ${id}`, {
    action: "Skip it", danger: true, done,
    preview: () => ({
      text: `acknowledges this entry for ${subscription}, delivered or not: it is not redelivered to this subscription`,
      command: shell("subscriptions skip", [topic, subscription], `--message ${id}`),
    }),
    async run() {
      await post(`${subscriptionPath(topic, subscription)}/skip/${ledger}/${entry}`);
      return `${id} is skipped`;
    },
  });
}

function deleteSubscription(topic, subscription) {
  ask("Delete the subscription", {
    action: "Delete", danger: true,
    async preview() {
      const { messages } = await get(`${subscriptionPath(topic, subscription)}/preview/skip-all`);
      return {
        text: `deletes ${subscription} with its position: ${plural(messages, "message")} that it has not acknowledged will not be delivered to it`,
        command: shell("subscriptions delete", [shortTopic(topic), subscription]),
      };
    },
    async run() {
      await call("DELETE", subscriptionPath(topic, subscription));
      location.hash = topicLink(topic);
      return `${subscription} is deleted`;
    },
  });
}

export function createSubscription(topic, done) {
  ask("Add a subscription", {
    fields: { name: ["Name", { required: true }], from: ["Start", { options: [["latest", "at the end"], ["earliest", "at the oldest message"]] }] },
    action: "Add", done,
    preview: ({ name, from }) => ({
      text: `adds ${name}, which keeps the messages ${from === "latest" ? "published from now on" : "that are stored, and new ones,"} until they are acknowledged`,
      command: shell("subscriptions create", [shortTopic(topic), name], `--from ${from}`),
    }),
    async run({ name, from }) {
      const id = from === "latest" ? END : -1;
      await call("PUT", subscriptionPath(topic, name), { body: `{"ledgerId":${id},"entryId":${id},"partitionIndex":-1}` });
      return `${name} is added`;
    },
  });
}

// Actions on a topic: title, effect by its stats, method and path of the request, and its body.
const TOPIC_ACTIONS = {
  partitions: ["Add partitions", ({ metadata }) => `has ${plural(metadata?.partitions ?? 0, "partition")} now; new messages of a key may go to another one`, "POST", "/partitions"],
  unload: ["Unload", (stats) => `disconnects ${plural(stats.publishers.length, "producer")} and all consumers: they reconnect, and unacknowledged messages are redelivered`, "PUT", "/unload"],
  compact: ["Compact", () => "stores the newest message of each key for readers of the compacted topic", "PUT", "/compaction"],
  offload: ["Offload", () => "moves its closed ledgers to the offload storage", "PUT", "/offload", `{"ledgerId":${END},"entryId":${END}}`],
  terminate: ["Terminate", () => "refuses new messages for ever; stored ones can be read", "POST", "/terminate"],
  truncate: ["Delete all messages", (stats) => `deletes ${bytes(stats.storageSize)} of messages for ever; its subscriptions stay`, "DELETE", "/truncate"],
  schema: ["Delete the schema", () => "deletes all versions of its schema: messages written with them can no longer be decoded", "DELETE", "/schema"],
  delete: ["Delete", (stats) => `deletes ${bytes(stats.storageSize)} of messages and ${plural(Object.keys(stats.subscriptions).length, "subscription")} for ever`, "DELETE", ""],
};

export function topicActions(topic, partitions, done) {
  const choice = h("select", { "aria-label": "More actions", onchange: () => {
    changeTopic(choice.value, topic, partitions() ?? 0, done);
    choice.value = "";
  } }, h("option", { value: "" }, "More …"), Object.entries(TOPIC_ACTIONS).map(([name, [title]]) => h("option", { value: name }, title)));
  return choice;
}

function changeTopic(name, topic, partitions, done) {
  const [title, effect, method, path, body] = TOPIC_ACTIONS[name];
  const gone = name === "delete";
  const short = shortTopic(topic);
  ask(title, {
    fields: {
      ...(name === "partitions" && { number: ["Partitions", { type: "number", min: partitions + 1, value: partitions + 1, required: true }] }),
      ...(gone && { force: ["also while clients are connected", { type: "checkbox" }] }),
    },
    action: title, danger: method === "DELETE" || name === "terminate", done: gone ? undefined : done,
    async preview({ number, force }) {
      if (number && !partitions) throw new Error("The topic is not partitioned.");
      const stats = await get(`${topicPath(topic)}/${partitions ? "partitioned-stats" : "stats"}`);
      return { text: effect(stats), command: shell(name === "schema" ? "schemas delete" : `topics ${name}`, [short], number ? `--set ${number}` : force ? "--force" : "") };
    },
    async run({ number, force }) {
      const suffix = partitions && gone ? "/partitions" : partitions && name === "terminate" ? "/terminate/partitions" : path;
      await call(method, (name === "schema" ? schemaPath(topic) : topicPath(topic)) + suffix, { query: { force: force || null }, body: number ?? body });
      if (gone) location.hash = "#/topics";
      return gone ? `${short} is deleted` : `Done: ${title.toLowerCase()}`;
    },
  });
}

const SCHEMA_TYPES = ["AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE"];

// Registers a schema, or a further version of it; `newest` is {type, data} of the present one, or null.
export function registerSchema(topic, newest, done) {
  const send = (what, { type, definition }) => post(`${schemaPath(topic)}/${what}`, {}, { type, schema: definition, properties: {} });
  ask("Register a schema", {
    fields: {
      type: ["Type", { options: SCHEMA_TYPES.map((each) => [each]), value: SCHEMA_TYPES.includes(newest?.type) ? newest.type : "AVRO" }],
      definition: ["Definition, in JSON", { tag: "textarea", rows: 12, required: true, value: newest ? pretty(newest.data) : "" }],
    },
    action: "Register", done,
    async preview(values) {
      try {
        JSON.parse(values.definition);
      } catch (error) {
        throw new Error(`The definition is not JSON: ${error.message}`, { cause: error });
      }
      const { compatibility, schemaCompatibilityStrategy: strategy } = await send("compatibility", values);
      const rule = strategy.toLowerCase().replaceAll("_", " ");
      if (!compatibility) throw new Error(`The existing versions do not allow it: new ones must be ${rule}.`);
      return { text: `registers it for ${shortTopic(topic)}, ${newest ? `whose existing versions allow it (${rule})` : "which has no schema yet"}`,
        command: shell("schemas upload", [shortTopic(topic)], `--type ${values.type} --file - <<< ${quoted(values.definition)}`) };
    },
    async run(values) {
      return `Registered as version ${(await send("schema", values)).version.version}`;
    },
  });
}

// Dead letters go back through the broker's own client: each is sent once, also if this page is closed.
export function redrive(topic, subscription, done) {
  const send = (preview, { key, contains }) => post("/console/api/redrive", {}, { topic, subscription, preview, key: key || null, contains });
  const targets = (sent) => Object.entries(sent).map(([to, number]) => `${plural(number, "message")} to ${shortTopic(to)}`).join(", ");
  ask("Send dead letters back", {
    fields: { key: ["Only with this key (may be empty)"], contains: ["Only with this text (may be empty)"] },
    action: "Send them back", done,
    async preview(values) {
      const { sent, left, encrypted } = await send(true, values);
      if (!Object.keys(sent).length) throw new Error("No dead letter is to be sent.");
      return {
        text: [`sends ${targets(sent)}, where every subscription receives them`, left ? `${count(left)} stay` : "", encrypted ? `${count(encrypted)} are encrypted and stay` : ""].filter(Boolean).join("; "),
        command: shell("subscriptions redrive", [shortTopic(topic), subscription], option("--key", values.key) + option("--contains", values.contains)),
      };
    },
    async run(values) {
      const { sent, left } = await send(false, values);
      return `Sent ${targets(sent)}${left ? `; ${count(left)} stay` : ""}`;
    },
  });
}
