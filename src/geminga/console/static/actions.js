// Actions on a subscription. Each dialog shows the effect before the action is done.

import { call, get, post } from "./api.js";
import { option, shell, shortTopic } from "./command.js";
import { ask, dialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { bytes, count, part, plural, schemaPath, topicLink, topicPath } from "./format.js";
import { SchemaBook, messageItem } from "./messages.js";

const UNITS = { seconds: 1, minutes: 60, hours: 3600, days: 86400 };
const END = "9223372036854775807"; // as text: it exceeds JavaScript's integers

export const subscriptionPath = (topic, subscription) =>
  `${topicPath(topic)}/subscription/${part(subscription)}`;

const input = (attributes) => h("input", attributes);

function ageFields(value, unit) {
  const number = input({ type: "number", min: 0, step: "any", value, required: true, "aria-label": "How long" });
  const units = h("select", { "aria-label": "Unit" }, Object.keys(UNITS).map((name) => h("option", { value: name }, name)));
  units.value = unit;
  return { fields: [number, units], seconds: () => Math.round(Number(number.value) * UNITS[units.value]) };
}

const ACTIONS = {
  skip: {
    title: "Skip messages", action: "Skip them", danger: true,
    words: "Skips the next unacknowledged messages, for this subscription.",
    form() {
      const all = input({ type: "checkbox", id: "skip-all" });
      const number = input({ type: "number", min: 1, value: 1, required: true, "aria-label": "How many messages" });
      all.addEventListener("change", () => (number.disabled = all.checked));
      return {
        fields: [h("label", {}, "How many"), number, h("span", {}, all, h("label", { htmlFor: "skip-all" }, " the whole backlog"))],
        preview: () => (all.checked ? ["skip-all", {}] : ["skip", { count: number.value }]),
        run: (path) => (all.checked ? post(`${path}/skip_all`) : post(`${path}/skip/${Number(number.value)}`, { unit: "messages" })),
      };
    },
  },
  reset: {
    title: "Reset position", action: "Reset", danger: true,
    words: "Resets the subscription: back, and messages are redelivered; forward, and messages are skipped.",
    form() {
      const kind = h("select", { "aria-label": "Where to" },
        [["ago", "to a time ago"], ["time", "to a time"], ["message", "to a message"], ["earliest", "to the oldest message"], ["latest", "to the end"]]
          .map(([value, words]) => h("option", { value }, words)));
      const age = ageFields(1, "hours");
      const time = input({ type: "datetime-local", step: 1, "aria-label": "Time", hidden: true });
      time.value = new Date(Date.now() - 36e5 - new Date().getTimezoneOffset() * 6e4).toISOString().slice(0, 19);
      const message = input({ placeholder: "ledger:entry", pattern: "\\d+:\\d+", "aria-label": "Message", hidden: true });
      const show = () => {
        for (const field of age.fields) field.hidden = kind.value !== "ago";
        time.hidden = kind.value !== "time";
        message.hidden = kind.value !== "message";
      };
      kind.addEventListener("change", show);
      const where = () => {
        if (kind.value === "message") return { message: message.value.trim() };
        if (kind.value === "earliest") return { message: "-1:-1" };
        if (kind.value === "latest") return { message: `${END}:${END}` };
        return { timestamp: kind.value === "ago" ? Date.now() - age.seconds() * 1000 : new Date(time.value).getTime() };
      };
      // Keep the time of the preview: "an hour ago" would mean a later position at the click.
      let said = {};
      return {
        fields: [h("label", {}, "Where to"), kind, h("span"), ...age.fields, time, message],
        preview: () => ["reset", (said = where())],
        run(path) {
          const { timestamp, message: id } = said;
          if (timestamp !== undefined) return post(`${path}/resetcursor/${timestamp}`);
          const [ledger, entry] = id.split(":");
          // As text: the end exceeds JavaScript's integers.
          return post(`${path}/resetcursor`, {}, `{"ledgerId":${ledger},"entryId":${entry},"partitionIndex":-1,"batchIndex":-1}`);
        },
      };
    },
  },
  expire: {
    title: "Expire old messages", action: "Expire them", danger: true,
    words: "Skips messages that are older than this.",
    form() {
      const age = ageFields(1, "days");
      return {
        fields: [h("label", {}, "Older than"), ...age.fields],
        preview: () => ["expire", { seconds: age.seconds() }],
        run: (path) => post(`${path}/expireMessages/${age.seconds()}`),
      };
    },
  },
  redeliver: {
    title: "Redeliver", action: "Redeliver",
    words: "Redelivers messages that consumers received and have not acknowledged.",
    form(consumers) {
      const choice = h("select", { "aria-label": "Consumer" },
        h("option", { value: "" }, "all consumers"), consumers.map((name) => h("option", { value: name }, name)));
      return {
        fields: [h("label", {}, "Of"), choice],
        preview: () => ["redeliver", { consumer: choice.value }],
        run: (path) => post(`${path}/redeliver`, { consumer: choice.value }),
      };
    },
  },
};

export function actionButtons(topic, subscription, consumers, done) {
  const button = (name, words) => h("button", { type: "button", "data-action": name, onclick: () => open(name) }, words);
  const open = (name) => perform(name, topic(), subscription, consumers(), done);
  return h("div", { class: "actions" },
    h("button", { type: "button", "data-action": "peek", onclick: () => peek(topic(), subscription) }, "Peek"),
    button("redeliver", "Redeliver"), button("expire", "Expire"), button("skip", "Skip"), button("reset", "Reset"),
    h("button", { type: "button", onclick: () => deleteSubscription(topic(), subscription) }, "Delete"));
}

function perform(name, topic, subscription, consumers, done) {
  const { title, action, words, danger, form } = ACTIONS[name];
  const path = subscriptionPath(topic, subscription);
  const { fields, preview, run } = form(consumers);
  ask(title, {
    content: [h("p", {}, words), h("div", { class: "fields" }, fields)], action, danger, done,
    preview() {
      const [what, query] = preview();
      return get(`${path}/preview/${what}`, query);
    },
    async run() {
      await run(path);
      return `Done: ${title.toLowerCase()} of ${subscription}`;
    },
  });
}

export async function peek(topic, subscription) {
  const list = h("ol", { class: "messages" }, h("li", {}, "…"));
  const box = dialog(`Next messages of ${subscription}`, [
    h("p", { class: "none" }, "Unacknowledged messages, the oldest first. They are shown, not consumed."),
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

export function deleteSubscription(topic, subscription) {
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
  const name = input({ id: "new-subscription", required: true, autocomplete: "off", spellcheck: "false" });
  const from = h("select", { "aria-label": "Start" }, h("option", { value: "latest" }, "at the end"), h("option", { value: "earliest" }, "at the oldest message"));
  ask("Add a subscription", {
    content: [h("label", { htmlFor: "new-subscription" }, "Name"), name, h("label", {}, "Start"), from],
    action: "Add", done,
    preview: () => ({
      text: `adds ${name.value}, which keeps the messages ${from.value === "latest" ? "published from now on" : "that are stored, and new ones,"} until they are acknowledged`,
      command: shell("subscriptions create", [shortTopic(topic), name.value], `--from ${from.value}`),
    }),
    async run() {
      const id = from.value === "latest" ? END : -1;
      await call("PUT", subscriptionPath(topic, name.value), { body: `{"ledgerId":${id},"entryId":${id},"partitionIndex":-1}` });
      return `${name.value} is added`;
    },
  });
  name.focus();
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
  const number = name === "partitions" ? input({ type: "number", min: partitions + 1, value: partitions + 1, required: true, "aria-label": "Partitions" }) : null;
  const force = gone ? input({ type: "checkbox", id: "force" }) : null;
  ask(title, {
    content: [number, force && h("p", {}, force, h("label", { htmlFor: "force" }, " also while clients are connected"))],
    action: title, danger: method === "DELETE" || name === "terminate", done: gone ? undefined : done,
    async preview() {
      if (number && !partitions) throw new Error("The topic is not partitioned.");
      const stats = await get(`${topicPath(topic)}/${partitions ? "partitioned-stats" : "stats"}`);
      return { text: effect(stats), command: shell(name === "schema" ? "schemas delete" : `topics ${name}`, [shortTopic(topic)], number ? `--set ${number.value}` : force?.checked ? "--force" : "") };
    },
    async run() {
      const suffix = partitions && gone ? "/partitions" : partitions && name === "terminate" ? "/terminate/partitions" : path;
      await call(method, (name === "schema" ? schemaPath(topic) : topicPath(topic)) + suffix, { query: force?.checked ? { force: true } : {}, body: number?.value ?? body });
      if (gone) location.hash = "#/topics";
      return gone ? `${shortTopic(topic)} is deleted` : `Done: ${title.toLowerCase()}`;
    },
  });
}

// Dead letters go back through the broker's own client: each is sent once, also if this page is closed.
export function redrive(topic, subscription, done) {
  const key = input({ id: "redrive-key", autocomplete: "off" });
  const words = input({ id: "redrive-text", autocomplete: "off" });
  const send = (preview) => post("/console/api/redrive", {}, { topic, subscription, preview, key: key.value || null, contains: words.value });
  const targets = (sent) => Object.entries(sent).map(([to, number]) => `${plural(number, "message")} to ${shortTopic(to)}`).join(", ");
  ask("Send dead letters back", {
    content: [h("label", { htmlFor: "redrive-key" }, "Only with this key (may be empty)"), key,
      h("label", { htmlFor: "redrive-text" }, "Only with this text (may be empty)"), words],
    action: "Send them back", done,
    async preview() {
      const { sent, left, encrypted } = await send(true);
      if (!Object.keys(sent).length) throw new Error("No dead letter is to be sent.");
      return {
        text: [`sends ${targets(sent)}, where every subscription receives them`, left ? `${count(left)} stay` : "", encrypted ? `${count(encrypted)} are encrypted and stay` : ""].filter(Boolean).join("; "),
        command: shell("subscriptions redrive", [shortTopic(topic), subscription], option("--key", key.value) + option("--contains", words.value)),
      };
    },
    async run() {
      const { sent, left } = await send(false);
      return `Sent ${targets(sent)}${left ? `; ${count(left)} stay` : ""}`;
    },
  });
}

// Publishes one message.
export function produce(topic, done) {
  const value = h("textarea", { id: "new-value", rows: 5, spellcheck: "false" });
  const key = h("input", { id: "new-key", autocomplete: "off", spellcheck: "false" });
  ask("Publish a message", {
    content: [h("label", { htmlFor: "new-value" }, "Value, as text"), value, h("label", { htmlFor: "new-key" }, "Key (may be empty)"), key],
    action: "Publish", done,
    preview: () => ({
      text: "stores one message, which every subscription of the topic receives",
      command: shell("produce", [shortTopic(topic), value.value], option("--key", key.value)),
    }),
    async run() {
      const { id } = await call("POST", `${topicPath(topic)}/message`, { body: { payload: value.value, key: key.value || null } });
      return `Stored as ${id}`;
    },
  });
  value.focus();
}
