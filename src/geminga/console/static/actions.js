// Actions on topics and subscriptions, policies and permissions, and the pages of tenants and namespaces. Each dialog
// shows the effect before the action is done.

import { call, get, post } from "./api.js";
import { SPANS, ask, button, bytes, count, dialog, duration, faint, fill, h, head, link, nameOf, namespaceLink, option, pairs, panel, part, perSecond, plural, pretty, quoted, schemaPath, shell, shortTopic, table, text, topicLink, topicName, topicPath, topicsLink } from "./dom.js";
import { SchemaBook, messageItem } from "./messages.js";

const END = "9223372036854775807"; // as text: it exceeds JavaScript's integers

export const subscriptionPath = (topic, subscription) =>
  `${topicPath(topic)}/subscription/${part(subscription)}`;

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

// Registers a schema or a further version; `newest` is {type, data} of the present one, or null.
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

const UNLIMITED = "no limit";
const limit = (number, words = count) => (number > 0 ? words(number) : UNLIMITED);
function span(seconds) {
  const [unit, size] = SPANS.find(([, each]) => seconds % each === 0) ?? [];
  return size > 1 ? plural(seconds / size, unit.slice(0, -1)) : duration(seconds);
}
const yes = (value) => (value ? "yes" : "no");

function retention({ retentionTimeInMinutes: minutes, retentionSizeInMB: megabytes }) {
  if (!minutes && !megabytes) return "none: messages are deleted once all subscriptions acknowledged them";
  const time = minutes < 0 ? "for ever" : span(minutes * 60);
  return minutes < 0 && megabytes < 0 ? "for ever, any size" : `${time}, ${megabytes < 0 ? "any size" : `at most ${bytes(megabytes * 1048576)}`}`;
}

const BEYOND = {
  producer_request_hold: "then producers wait", producer_exception: "then publishing fails",
  consumer_backlog_eviction: "then the oldest messages are dropped",
};

function quotas(map) {
  const found = [];
  for (const each of Object.values(map ?? {})) {
    if (each?.limitSize > 0) found.push(`${bytes(each.limitSize)}, ${BEYOND[each.policy] ?? each.policy}`);
    if (each?.limitTime > 0) found.push(`${span(each.limitTime)} old, ${BEYOND[each.policy] ?? each.policy}`);
  }
  return found.join("; ") || UNLIMITED;
}

const throttle = (messages, size, period = 1) => {
  const each = period === 1 ? "/s" : ` in ${span(period)}`;
  return [messages > 0 ? `${count(messages)} messages${each}` : "", size > 0 ? `${bytes(size)}${each}` : ""].filter(Boolean).join(", ") || UNLIMITED;
};
const dispatch = (value) => throttle(value.dispatchThrottlingRateInMsg, value.dispatchThrottlingRateInByte, value.ratePeriodInSecond ?? 1);

// Fields of a value: name in its object ("" for the value itself), title, kind, and the number for "no limit". Of a list
// each field is a member.
const COUNT = [["", "Number", "count", 0]];
const SWITCH = (name = "") => [[name, "Value", ["true", "false"]]];
const RATE = (kind) => [[`${kind}ThrottlingRateInMsg`, "Messages a second", "count", -1], [`${kind}ThrottlingRateInByte`, "Bytes a second", "bytes", -1]];
const UNITS = {
  count: [["", 1]],
  bytes: [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024], ["B", 1]],
  megabytes: [["GiB", 1024], ["MiB", 1]],
  seconds: SPANS,
  minutes: [["days", 1440], ["hours", 60], ["minutes", 1]],
};
const TYPES = ["Exclusive", "Shared", "Failover", "Key_Shared"];
const STRATEGIES = ["BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE", "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"];

// Path of the topic's policy (null: not of topics), path of the namespace's, title, the words for a value, its fields (null:
// not changed here), and the methods that set it there where not POST.
const POLICIES = [
  ["retention", "retention", "Acknowledged messages are kept", retention, [["retentionTimeInMinutes", "Time", "minutes", -1], ["retentionSizeInMB", "Size", "megabytes", -1]]],
  ["messageTTL", "messageTTL", "Messages expire", (value) => (value > 0 ? `after ${span(value)}` : "never"), [["", "After", "seconds", 0]]],
  ["messageTTLFromDelivery", "messageTTLFromDelivery", "Expiry counts from", (value) => (value ? "delivery time" : "publishing"), SWITCH()],
  ["backlogQuotaMap", "backlogQuotaMap", "Backlog of a subscription", quotas, [["limitSize", "Size", "bytes", -1], ["limitTime", "Age", "seconds", -1], ["policy", "When exceeded", Object.keys(BEYOND)]]],
  ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer", "Unacknowledged, a consumer"],
  ["maxUnackedMessagesOnSubscription", "maxUnackedMessagesPerSubscription", "Unacknowledged, a subscription"],
  ["maxProducers", "maxProducersPerTopic", "Producers of a topic"],
  ["maxConsumers", "maxConsumersPerTopic", "Consumers of a topic"],
  ["maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "Subscriptions of a topic"],
  ["maxConsumersPerSubscription", "maxConsumersPerSubscription", "Consumers of a subscription"],
  [null, "maxTopicsPerNamespace", "Topics of the namespace"],
  ["publishRate", "publishRate", "Publishing", (value) => throttle(value.publishThrottlingRateInMsg, value.publishThrottlingRateInByte), RATE("publish")],
  ["dispatchRate", "dispatchRate", "Delivery, the topic", dispatch, RATE("dispatch")],
  ["subscriptionDispatchRate", "subscriptionDispatchRate", "Delivery, a subscription", dispatch, RATE("dispatch")],
  ["subscribeRate", "subscribeRate", "Subscribing, a consumer", (value) => (value.subscribeThrottlingRatePerConsumer > 0 ? `${count(value.subscribeThrottlingRatePerConsumer)} times in ${span(value.ratePeriodInSecond)}` : UNLIMITED),
    [["subscribeThrottlingRatePerConsumer", "Times", "count", -1], ["ratePeriodInSecond", "In", "seconds", 1]]],
  ["maxMessageSize", null, "Size of a message", (value) => limit(value, bytes), [["", "Size", "bytes", 0]]],
  ["deduplicationEnabled", "deduplication", "Deduplication", (value) => (value ? "on" : "off"), SWITCH()],
  ["delayedDelivery", "delayedDelivery", "Delayed delivery", (value) => (value.active ? `allowed, exact to ${value.tickTime} ms` : "not allowed"), SWITCH("active")],
  ["compactionThreshold", "compactionThreshold", "Compaction", (value) => (value > 0 ? `from ${bytes(value)} on` : "only on request"), [["", "From", "bytes", 0]], ["POST", "PUT"]],
  ["redeliverUnacked", "redeliverUnacked", "Unacknowledged messages are redelivered", (value) => (value.afterSeconds > 0 ? `after ${span(value.afterSeconds)}` : "never"), [["afterSeconds", "After", "seconds", 0]]],
  ["inactiveTopicPolicies", "inactiveTopicPolicies", "Unused topics", (value) => (value.deleteWhileInactive ? `are deleted after ${span(value.maxInactiveDurationSeconds)}` : "stay"), [...SWITCH("deleteWhileInactive"), ["maxInactiveDurationSeconds", "After", "seconds", 86400]]],
  [null, "subscriptionExpirationTime", "Unused subscriptions", (value) => (value > 0 ? `are deleted after ${span(value * 60)}` : "stay"), [["", "After", "minutes", 0]]],
  [null, "autoTopicCreation", "Topics are created by use", (value) => (value.allowAutoTopicCreation ? (value.topicType === "partitioned" ? `with ${plural(value.defaultNumPartitions, "partition")}` : "yes") : "no"), SWITCH("allowAutoTopicCreation")],
  ["autoSubscriptionCreation", "autoSubscriptionCreation", "Subscriptions are created by use", (value) => yes(value.allowAutoSubscriptionCreation), SWITCH("allowAutoSubscriptionCreation")],
  ["subscriptionTypesEnabled", "subscriptionTypesEnabled", "Types of subscriptions", (value) => value.join(", "), TYPES.map((each) => [each, each, "member"])],
  ["schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "New schemas must be", (value) => (value === "UNDEFINED" ? "as the broker's setting says" : String(value).toLowerCase().replaceAll("_", " ")), [["", "Strategy", STRATEGIES]], ["PUT", "PUT"]],
  ["schemaValidationEnforced", "schemaValidationEnforced", "Producers need a schema", yes, SWITCH()],
  [null, "isAllowAutoUpdateSchema", "Producers register schemas", yes, SWITCH()],
  [null, "encryptionRequired", "Encryption is required", yes, SWITCH()],
  ["offloadPolicies", "offloadPolicies", "Offloading", (value) => (value.managedLedgerOffloadDriver ? `to ${value.managedLedgerOffloadBucket ?? value.managedLedgerOffloadDriver}` : "off"), null],
  [null, "offloadThreshold", "Offloading by size", (value) => (value >= 0 ? `beyond ${bytes(value)}` : "never"), [["", "Beyond", "bytes", -1]], [, "PUT"]],
  [null, "offloadThresholdInSeconds", "Offloading by age", (value) => (value >= 0 ? `after ${span(value)}` : "never"), [["", "After", "seconds", -1]], [, "PUT"]],
];

const namespacePath = (namespace) => `/admin/v2/namespaces/${namespace.split("/").map(part).join("/")}`;
const UNSET = new Set([false, "UNDEFINED", -1]); // what namespaces have from the beginning
const isSet = (value) => value !== undefined && value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length);
const worded = (words, value) => {
  if (!isSet(value)) return "the broker's setting";
  try {
    return words(value);
  } catch {
    return JSON.stringify(value);
  }
};

const WORDS = { true: "yes", false: "no", ...BEYOND };

function fieldOf([name, title, kind, none], policy) {
  if (kind === "member") return [title, { type: "checkbox", checked: policy?.includes(name) }];
  const value = name ? policy?.[name] : policy;
  if (!Array.isArray(kind)) return [title, { units: UNITS[kind], value, none, placeholder: none > 0 ? "" : "no limit" }];
  const text = String(value);
  return [title, { options: kind.map((each) => [each, WORDS[each] ?? each.toLowerCase().replaceAll("_", " ")]), value: kind.includes(text) ? text : kind[0] }];
}

// The dialog that changes a policy of a topic or namespace; `place` is its name on the command line.
function change({ path, place, name, title, words, form, method = "POST", value, own, done }) {
  const noun = path.startsWith("/admin/v2/namespaces/") ? "namespaces" : "topics";
  const isTopic = noun === "topics";
  const isQuota = name === "backlogQuotaMap"; // read as a map of two quotas, each of which is set alone
  const current = isQuota ? { ...value?.message_age, limitSize: value?.destination_storage?.limitSize, ...(value?.destination_storage?.limitSize > 0 && { policy: value.destination_storage.policy }) } : value;
  const wanted = (values) => {
    if (form[0][2] === "member") return form.flatMap(([member], at) => (values[at] ? member : []));
    const read = form.map(([field, , kind], at) => [field, Array.isArray(kind) && kind[0] === "true" ? values[at] === "true" : values[at]]);
    return !form[0][0] ? read[0][1] : { ...(isQuota ? {} : current), ...Object.fromEntries(read) };
  };
  const command = (next) => {
    if (!isQuota) return next === null ? shell(`${noun} policy`, [place, name], "--remove") : shell(`${noun} policy`, [place, name, JSON.stringify(next)]);
    const set = (isLimited, names, options) => (isLimited ? [shell(`${noun} set-quota`, [place, ...names], `${options}--policy ${next.policy}`)] : []);
    return next === null ? shell(`${noun} unset`, [place, "backlog_quota"])
      : [set(next.limitSize > 0, [String(next.limitSize)], ""), set(next.limitTime > 0, [], `--age ${next.limitTime}s `)].flat().join(" && ");
  };
  const send = (next, segment, query = {}) => call(next === null ? "DELETE" : method, `${path}/${segment}`, { query, body: next === null ? undefined : JSON.stringify(next) });
  const quota = (next, field, type) => send(next?.[field] > 0 ? { [field]: next[field], policy: next.policy } : null, "backlogQuota", { backlogQuotaType: type });
  ask(title, {
    fields: { ...form.map((each) => fieldOf(each, current)),
      remove: [isTopic ? "use the namespace's setting" : "use the broker's setting", { type: "checkbox", disabled: !own }] },
    action: "Change", done,
    async preview(values) {
      const now = `now: ${worded(words, value)}`;
      if (values.remove) return { text: `${now}; then: not set here`, command: command(null) };
      const next = wanted(values);
      if (isQuota && !(next.limitSize > 0 || next.limitTime > 0)) throw new Error("Give a size or an age.");
      const lost = isTopic && name === "messageTTL" ? await expired(path, next) : "";
      return { text: `${now}; then: ${worded(words, isQuota ? { both: next } : next)}${lost}`, command: command(next) };
    },
    async run(values) {
      const next = values.remove ? null : wanted(values);
      if (isQuota) {
        await quota(next, "limitSize", "destination_storage");
        await quota(next, "limitTime", "message_age");
      } else await send(next, name, name === "messageTTL" && isTopic && next !== null ? { messageTTL: next } : {});
      return `Changed: ${title}`;
    },
  });
}

async function expired(path, seconds) {
  if (!(seconds > 0)) return "";
  // Previews are of one topic, by publish time.
  if ((await get(`${path}/partitions`))?.partitions || (await get(`${path}/messageTTLFromDelivery`, { applied: true }))) return "; older messages expire at once";
  const { subscriptions } = await get(`${path}/stats`);
  const found = await Promise.all(Object.keys(subscriptions).slice(0, 20).map((each) => get(`${path}/subscription/${part(each)}/preview/expire`, { seconds })));
  return `; ${plural(found.reduce((sum, each) => sum + each.messages, 0), "message")} of ${plural(found.length, "subscription")} expire at once`;
}

const quiet = (words, name, act) => button(words, act, { class: "quiet", "aria-label": `${words}: ${name}` });
const rows = (found) => pairs(found.map(([title, words, where, edit]) => [title, words, h("small", {}, where), edit ? quiet("Change", title, edit) : null]));

export async function topicPolicies(element, topic, signal) {
  const { tenant, namespace } = nameOf(topic);
  const path = topicPath(topic);
  const place = `${tenant}/${namespace}`;
  const [own, ofNamespace, ...values] = await Promise.all([
    get(`${path}/policiesSet`, {}, signal).catch(() => []), get(`${namespacePath(place)}/policiesSet`, {}, signal).catch(() => []),
    ...POLICIES.map(([name]) => (name ? get(`${path}/${name}`, { applied: true }, signal).catch(() => undefined) : undefined)),
  ]);
  const done = () => topicPolicies(element, topic);
  const found = POLICIES.flatMap(([name, inNamespace, title, words = limit, form = COUNT, methods], at) => {
    if (!name || (!isSet(values[at]) && !form)) return [];
    const value = values[at];
    const where = !isSet(value) || UNSET.has(value) ? "default" : own.includes(name) ? "set on this topic"
      : ofNamespace.includes(inNamespace) ? ["set on ", link(namespaceLink(place), place)] : "default";
    const edit = form && (() => change({ path, place: shortTopic(topic), name, title, words, form, method: methods?.[0], value, own: own.includes(name), done }));
    return [[title, worded(words, value), where, edit]];
  });
  fill(element, found.length ? rows(found) : [h("dt", {}, "Policies"), h("dd", { class: "none" }, "none are known")]);
}

// The policies in force in a namespace: what is set there, and the broker's defaults.
async function namespacePolicies(element, namespace, signal) {
  const path = namespacePath(namespace);
  const set = await get(`${path}/policiesSet`, {}, signal).catch(() => null);
  const values = await Promise.all(POLICIES.map(([, name]) => (name ? get(`${path}/${name}`, { applied: true }, signal).catch(() => undefined) : undefined)));
  const done = () => namespacePolicies(element, namespace);
  fill(element, rows(POLICIES.flatMap(([, name, title, words = limit, form = COUNT, methods], at) => {
    const value = values[at];
    if (!name || (!isSet(value) && !form)) return [];
    const own = set?.includes(name) ?? true;
    const edit = form && (() => change({ path, place: namespace, name, title, words, form, method: methods?.[1], value, own, done }));
    return [[title, worded(words, value), isSet(value) && own && !UNSET.has(name === "isAllowAutoUpdateSchema" ? !value : value) ? "set here" : "default", edit]];
  })));
}

const PERMITTED = ["produce", "consume"];

// `of`: the path of a resource in admin REST, and its noun and name on the command line.
export async function permissions(element, of, signal) {
  const found = await get(`${of.path}/permissions`, {}, signal);
  const done = () => permissions(element, of);
  const roles = Object.entries(found ?? {});
  fill(element, pairs(roles.map(([role, actions]) => [role, actions.join(", "), quiet("Revoke", role, () => revoke(of, role, done))])),
    h("dt", {}, roles.length ? "" : "Roles"), h("dd", { class: "none" }, roles.length ? "" : `none has permissions of its own in ${of.place}`,
      button("Allow a role", () => grant(of, done), { class: "quiet" })));
}

function grant({ path, noun, place }, done) {
  const chosen = (values) => PERMITTED.filter((each) => values[each]);
  ask("Allow a role", {
    fields: { role: ["Role", { required: true }], ...Object.fromEntries(PERMITTED.map((each) => [each, [each, { type: "checkbox", checked: true }]])) },
    action: "Allow", done,
    preview(values) {
      const actions = chosen(values);
      if (!actions.length) throw new Error("Choose what the role may do.");
      return { text: `allows ${values.role} to ${actions.join(" and ")} in ${place}, and nothing else there`,
        command: shell(`${noun} grant`, [place, values.role, ...actions]) };
    },
    run: (values) => call("POST", `${path}/permissions/${part(values.role)}`, { body: chosen(values) }),
  });
}

function revoke({ path, noun, place }, role, done) {
  ask("Revoke permissions", {
    action: "Revoke", danger: true, done,
    preview: () => ({ text: `removes what ${role} was granted in ${place}`, command: shell(`${noun} revoke`, [place, role]) }),
    run: () => call("DELETE", `${path}/permissions/${part(role)}`),
  });
}

export async function properties(element, topic, signal) {
  const done = () => properties(element, topic);
  const found = Object.entries(await get(`${topicPath(topic)}/properties`, {}, signal) ?? {});
  fill(element, pairs(found.map(([name, value]) => [name, value, quiet("Change", name, () => setProperty(topic, name, value, done))])),
    h("dt", {}, found.length ? "" : "none"), h("dd", {}, button("Set a property", () => setProperty(topic, "", "", done), { class: "quiet" })));
}

function setProperty(topic, name, value, done) {
  ask(name ? "Change the property" : "Set a property", {
    fields: { name: ["Name", { required: true, value: name }], value: ["Value (empty: remove it)", { value }] },
    action: "Set", done,
    preview: ({ name, value }) => ({
      text: value ? `sets ${name} to ${value}` : `removes ${name}`, command: shell("topics properties", [shortTopic(topic), `${name}=${value}`]),
    }),
    run: ({ name, value }) => call(value ? "PUT" : "DELETE", `${topicPath(topic)}/properties`, value ? { body: { [name]: value } } : { query: { key: name } }),
  });
}

// --- tenants and namespaces ---
const EVERY_MS = 10_000;
const TOPICS_SHOWN = 10;
const TENANTS_SHOWN = 100;
const tenantPath = (tenant) => `/admin/v2/tenants/${part(tenant)}`;
const lines = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean); // roles may have spaces and commas
const topicsOf = (namespace, limit, signal) => get("/admin/v2/geminga/topics", { search: `://${namespace}/`, sort: "stored", limit }, signal);

export function showTenants(frame) {
  frame.title("Namespaces");
  const done = () => poller.now();
  const rows = table(["Tenant", "Namespaces", "Administrators", "Actions"], {
    key: JSON.stringify, fixed: true, name: ([name]) => h("b", {}, name),
    read: ([name, namespaces, { adminRoles }]) => [
      namespaces.length ? namespaces.map((each, at) => [at ? ", " : "", link(namespaceLink(each), each.slice(name.length + 1))]) : "none",
      adminRoles?.join(", ") || "super users only",
      [quiet("Change", name, () => tenantForm(name, adminRoles ?? [], done)), quiet("Delete", name, () => deleteTenant(name, namespaces, done))]],
  });
  const more = faint();
  const content = h("div", { class: "left" }, panel("Tenants", "owners of namespaces", rows.element, more));
  const poller = frame.page(head([], "Namespaces", null, button("Create a tenant", () => tenantForm("", [], done)), button("Create a namespace", () => createNamespace(done))), content, async (signal) => {
    const tenants = (await get("/admin/v2/tenants", {}, signal)).sort();
    rows.show(await Promise.all(tenants.slice(0, TENANTS_SHOWN).map((each) => Promise.all([
      each, get(`/admin/v2/namespaces/${part(each)}`, {}, signal).then((found) => found.sort()), get(tenantPath(each), {}, signal)]))));
    text(more, tenants.length > TENANTS_SHOWN ? `and ${count(tenants.length - TENANTS_SHOWN)} more` : "");
  }, EVERY_MS);
  return () => poller.stop();
}

// Creates a tenant, or with a name replaces the roles of that one.
function tenantForm(tenant, roles, done) {
  ask(tenant ? "Change the tenant" : "Create a tenant", {
    fields: {
      name: ["Name", { required: true, value: tenant, disabled: Boolean(tenant), pattern: "[\\-=:.\\w]+" }],
      admins: ["Roles that administer it, one on each line (may be empty)", { tag: "textarea", rows: 3, value: roles.join("\n") }],
    },
    action: tenant ? "Change" : "Create", done,
    preview({ name, admins }) {
      const then = lines(admins);
      if (tenant && !then.length) throw new Error("Name at least one role.");
      return {
        text: tenant ? `now: ${roles.join(", ") || "super users only"}; then: ${then.join(", ")} may administer ${tenant}`
          : `creates ${name}, which ${then.length ? `${then.join(", ")} may administer` : "super users administer"}`,
        command: shell(`tenants ${tenant ? "update" : "create"}`, [name], then.map((each) => option("--admin-role", each)).join("")),
      };
    },
    async run({ name, admins }) {
      const info = tenant ? await get(tenantPath(tenant)) : { allowedClusters: await get("/admin/v2/clusters") };
      await call(tenant ? "POST" : "PUT", tenantPath(name), { body: { ...info, adminRoles: lines(admins) } });
      return `${name} is ${tenant ? "changed" : "created"}`;
    },
  });
}

function createNamespace(done) {
  ask("Create a namespace", {
    fields: { name: ["Tenant and name", { required: true, value: "public/", pattern: "[^\\/]+\\/[\\-=:.\\w]+" }] },
    action: "Create", done,
    preview: ({ name }) => ({ text: `creates ${name}, with the broker's policies`, command: shell("namespaces create", [name]) }),
    async run({ name }) {
      await call("PUT", namespacePath(name));
      location.hash = namespaceLink(name);
      return `${name} is created`;
    },
  });
}

// `held`: resolves to the words for what is in the tenant or namespace, "" for nothing; that needs a tick.
function deletion(noun, name, path, held, done) {
  ask(`Delete the ${noun}`, {
    fields: { force: ["with everything in it, for ever", { type: "checkbox" }] }, action: "Delete", danger: true, done,
    async preview({ force }) {
      const inside = await held();
      if (inside && !force) throw new Error(`${name} has ${inside}.`);
      return { text: `deletes ${name}${inside ? `, ${inside} and all messages` : ", which is empty"}`, command: shell(`${noun}s delete`, [name], force ? "--force" : "") };
    },
    async run({ force }) {
      await call("DELETE", path, { query: { force: force || null } });
      location.hash = "#/namespaces";
      return `${name} is deleted`;
    },
  });
}

const deleteTenant = (tenant, namespaces, done) => deletion("tenant", tenant, tenantPath(tenant),
  async () => (namespaces.length ? plural(namespaces.length, "namespace") : ""), done);

const deleteNamespace = (namespace) => deletion("namespace", namespace, namespacePath(namespace), async () => {
  // The overview counts many topics without naming them, but is some seconds old.
  const number = (await topicsOf(namespace, 1)).matching || (await get(`/admin/v2/persistent/${namespacePath(namespace).split("/namespaces/")[1]}`)).length;
  return number ? plural(number, "topic") : "";
});

// Rarer actions on a namespace.
const NAMESPACE_ACTIONS = {
  unload: ["Unload", "disconnects all clients of its topics: they reconnect, and unacknowledged messages are redelivered", "PUT", "/unload"],
  "clear-backlog": ["Clear the backlog", "skips all messages that are not acknowledged, for every subscription of its topics, for good", "POST", "/clearBacklog"],
};

function namespaceAction(namespace, name) {
  const [title, text, method, path] = NAMESPACE_ACTIONS[name];
  ask(title, {
    action: title, danger: method === "POST",
    preview: () => ({ text, command: shell(`namespaces ${name}`, [namespace]) }),
    run: () => call(method, namespacePath(namespace) + path),
  });
}

export function showNamespace(frame, namespace) {
  frame.title(namespace);
  const path = namespacePath(namespace);
  const policies = h("dl", { class: "pairs" });
  const roles = h("dl", { class: "pairs" });
  const topics = table(["Topic", "In", "Out", "Stored", "Subscriptions"], {
    key: (row) => row.topic, name: (row) => link(topicLink(row.topic), topicName(row.topic).at(-1), "row"),
    read: (row) => [perSecond(row.rateIn), perSecond(row.rateOut), bytes(row.stored), count(row.subscriptions)],
    nothing: "There is no topic.",
  });
  const content = h("div", {},
    h("div", { class: "columns" }, panel("Policies", "of the namespace; topics may have their own", policies), panel("Permissions", "roles and what they may do", roles)),
    panel("Topics", link(topicsLink({ namespace }), "all of them"), topics.element));
  const poller = frame.page(head([h("a", { href: "#/namespaces" }, "Namespaces")], namespace, null,
    Object.entries(NAMESPACE_ACTIONS).map(([name, [title]]) => button(title, () => namespaceAction(namespace, name))),
    button("Delete", () => deleteNamespace(namespace))), content, async (signal) => {
    const [, found] = await Promise.all([
      permissions(roles, { path, noun: "namespaces", place: namespace }, signal),
      topicsOf(namespace, TOPICS_SHOWN, signal).catch(() => ({ rows: [] })),
      namespacePolicies(policies, namespace, signal),
    ]);
    topics.show(found.rows);
  }, EVERY_MS);
  return () => poller.stop();
}
