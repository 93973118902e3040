// Policies in words, and where each was set: on the topic, its namespace, or nowhere. Roles and their permissions.

import { call, get } from "./api.js";
import { shell, shortTopic } from "./command.js";
import { ask } from "./dialog.js";
import { fill, h } from "./dom.js";
import { bytes, count, duration, namespaceLink, part, plural, topicPath, nameOf } from "./format.js";

const UNLIMITED = "no limit";
const limit = (number, words = count) => (number > 0 ? words(number) : UNLIMITED);
const span = (seconds) => (seconds % 86400 === 0 ? plural(seconds / 86400, "day") : seconds % 3600 === 0 ? plural(seconds / 3600, "hour")
  : seconds % 60 === 0 ? plural(seconds / 60, "minute") : duration(seconds));
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

// Fields of a value: name in its object ("" for the value itself), title, kind, and the number for "no limit".
const COUNT = [["", "Number", "count", 0]];
const SWITCH = (name = "") => [[name, "Value", ["true", "false"]]];
const RATE = (kind) => [[`${kind}ThrottlingRateInMsg`, "Messages a second", "count", -1], [`${kind}ThrottlingRateInByte`, "Bytes a second", "bytes", -1]];
const UNITS = {
  count: [["", 1]],
  bytes: [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024], ["B", 1]],
  megabytes: [["GiB", 1024], ["MiB", 1]],
  seconds: [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]],
  minutes: [["days", 1440], ["hours", 60], ["minutes", 1]],
};
const STRATEGIES = ["BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE", "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"];

// Path of the topic's policy (null: not of topics), path of the namespace's, title, the words for a value, its fields,
// and the methods that set it there where not POST.
const POLICIES = [
  ["retention", "retention", "Acknowledged messages are kept", retention, [["retentionTimeInMinutes", "Time", "minutes", -1], ["retentionSizeInMB", "Size", "megabytes", -1]]],
  ["messageTTL", "messageTTL", "Messages expire", (value) => (value > 0 ? `after ${span(value)}` : "never"), [["", "After", "seconds", 0]]],
  ["backlogQuotaMap", "backlogQuotaMap", "Backlog of a subscription", quotas, [["limitSize", "Size", "bytes", -1], ["policy", "Then", Object.keys(BEYOND)]]],
  ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer", "Unacknowledged, a consumer", (value) => limit(value), COUNT],
  ["maxUnackedMessagesOnSubscription", "maxUnackedMessagesPerSubscription", "Unacknowledged, a subscription", (value) => limit(value), COUNT],
  ["maxProducers", "maxProducersPerTopic", "Producers of a topic", (value) => limit(value), COUNT],
  ["maxConsumers", "maxConsumersPerTopic", "Consumers of a topic", (value) => limit(value), COUNT],
  ["maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "Subscriptions of a topic", (value) => limit(value), COUNT],
  [null, "maxTopicsPerNamespace", "Topics of the namespace", (value) => limit(value), COUNT],
  ["publishRate", "publishRate", "Publishing", (value) => throttle(value.publishThrottlingRateInMsg, value.publishThrottlingRateInByte), RATE("publish")],
  ["dispatchRate", "dispatchRate", "Delivery, the topic", dispatch, RATE("dispatch")],
  ["subscriptionDispatchRate", "subscriptionDispatchRate", "Delivery, a subscription", dispatch, RATE("dispatch")],
  ["deduplicationEnabled", "deduplication", "Deduplication", (value) => (value ? "on" : "off"), SWITCH()],
  ["delayedDelivery", "delayedDelivery", "Delayed delivery", (value) => (value.active ? `allowed, exact to ${value.tickTime} ms` : "not allowed"), SWITCH("active")],
  ["compactionThreshold", "compactionThreshold", "Compaction", (value) => (value > 0 ? `from ${bytes(value)} on` : "only on request"), [["", "From", "bytes", 0]], ["POST", "PUT"]],
  ["redeliverUnacked", "redeliverUnacked", "Redelivery of what stays unacknowledged", (value) => (value.afterSeconds > 0 ? `after ${span(value.afterSeconds)}` : "never"), [["afterSeconds", "After", "seconds", 0]]],
  ["inactiveTopicPolicies", "inactiveTopicPolicies", "Unused topics", (value) => (value.deleteWhileInactive ? `are deleted after ${span(value.maxInactiveDurationSeconds)}` : "stay"), [...SWITCH("deleteWhileInactive"), ["maxInactiveDurationSeconds", "After", "seconds", 86400]]],
  [null, "autoTopicCreation", "Topics are created by use", (value) => (value.allowAutoTopicCreation ? (value.topicType === "partitioned" ? `with ${plural(value.defaultNumPartitions, "partition")}` : "yes") : "no"), SWITCH("allowAutoTopicCreation")],
  ["schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "New schemas must be", (value) => (value === "UNDEFINED" ? "as the broker requires" : String(value).toLowerCase().replaceAll("_", " ")), [["", "Strategy", STRATEGIES]], ["PUT", "PUT"]],
  ["schemaValidationEnforced", "schemaValidationEnforced", "Producers need a schema", yes, SWITCH()],
  [null, "encryptionRequired", "Encryption is required", yes, SWITCH()],
  ["offloadPolicies", "offloadPolicies", "Offloading", (value) => (value.managedLedgerOffloadDriver ? `to ${value.managedLedgerOffloadBucket ?? value.managedLedgerOffloadDriver}` : "off")],
];

export const namespacePath = (namespace) => `/admin/v2/namespaces/${namespace.split("/").map(part).join("/")}`;
const UNSET = new Set([false, "UNDEFINED"]);
const isSet = (value) => value !== undefined && value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length);
const worded = (words, value) => {
  if (!isSet(value)) return "as the broker has it";
  try {
    return words(value);
  } catch {
    return JSON.stringify(value);
  }
};

// A field of a form, and what it stands for.
function inputOf([name, title, kind, none], value) {
  if (Array.isArray(kind)) {
    const choice = h("select", { "aria-label": title }, kind.map((each) => h("option", { value: each }, WORDS[each] ?? each.toLowerCase().replaceAll("_", " "))));
    choice.value = kind.includes(String(value)) ? String(value) : kind[0];
    return { name, elements: [h("label", {}, title), choice, h("span")], read: () => (kind[0] === "true" ? choice.value === "true" : choice.value) };
  }
  const units = UNITS[kind];
  const [shown, factor] = value > 0 ? units.find(([, size]) => value % size === 0) : units[0];
  const number = h("input", { type: "number", min: 0, step: "any", value: value > 0 ? value / factor : "", placeholder: none > 0 ? "" : "no limit", "aria-label": title });
  const unit = h("select", { "aria-label": `${title}, unit`, hidden: kind === "count" }, units.map(([each]) => h("option", { value: each }, each)));
  unit.value = shown;
  return {
    name, elements: [h("label", {}, title), number, unit],
    read: () => (number.value === "" ? none : Math.round(Number(number.value) * units.find(([each]) => each === unit.value)[1])),
  };
}

const WORDS = { true: "yes", false: "no", ...BEYOND };

// The dialog that changes a policy of a topic or namespace; `place` is its name on the command line.
function change({ path, place, name, title, words, form, method = "POST", value, own, done }) {
  const noun = path.startsWith("/admin/v2/namespaces/") ? "namespaces" : "topics";
  const isQuota = name === "backlogQuotaMap"; // read as a map of quotas, set as the quota of size
  const segment = isQuota ? "backlogQuota" : name;
  const current = isQuota ? value?.destination_storage : value;
  const fields = form.map((each) => inputOf(each, each[0] ? current?.[each[0]] : current));
  const remove = h("input", { type: "checkbox", id: "policy-remove", disabled: !own });
  const read = () => Object.fromEntries(fields.map((each) => [each.name, each.read()]));
  const wanted = () => (!fields[0].name ? fields[0].read() : isQuota ? read() : { ...current, ...read() });
  const shown = (one) => worded(words, isQuota ? { size: one } : one);
  ask(title, {
    content: [...fields.map((each) => h("div", { class: "fields" }, each.elements)),
      h("p", {}, remove, h("label", { htmlFor: "policy-remove" }, noun === "topics" ? " as in the namespace" : " as the broker has it"))],
    action: "Change", done,
    async preview() {
      const equal = (value, options) => shell(`${noun} policy`, [place, segment, ...value], options);
      const now = `now: ${worded(words, value)}`;
      if (remove.checked) return { text: `${now}; then: not set here`, command: equal([], "--remove") };
      const lost = noun === "topics" && name === "messageTTL" ? await expired(path, wanted()) : "";
      return { text: `${now}; then: ${shown(wanted())}${lost}`, command: equal([JSON.stringify(wanted())]) };
    },
    async run() {
      const query = name === "messageTTL" && noun === "topics" && !remove.checked ? { messageTTL: wanted() } : {};
      await call(remove.checked ? "DELETE" : method, `${path}/${segment}`, { query, body: remove.checked ? undefined : JSON.stringify(wanted()) });
      return `Changed: ${title}`;
    },
  });
}

// What a limit of age would expire at once.
async function expired(path, seconds) {
  if (!(seconds > 0)) return "";
  if ((await get(`${path}/partitions`))?.partitions) return "; older messages expire at once"; // previews are of one partition
  const { subscriptions } = await get(`${path}/stats`);
  const found = await Promise.all(Object.keys(subscriptions).slice(0, 20).map((each) => get(`${path}/subscription/${part(each)}/preview/expire`, { seconds })));
  return `; ${plural(found.reduce((sum, each) => sum + each.messages, 0), "message")} of ${plural(found.length, "subscription")} expire at once`;
}

const rows = (found) => found.map(([title, words, where, edit]) => [h("dt", {}, title), h("dd", {}, words, h("small", {}, where),
  edit ? h("button", { type: "button", class: "quiet", "aria-label": `Change: ${title}`, onclick: edit }, "Change") : null)]);

// The policies in force on a topic.
export async function topicPolicies(element, topic, signal) {
  const { tenant, namespace } = nameOf(topic);
  const path = topicPath(topic);
  const place = `${tenant}/${namespace}`;
  const [own, ofNamespace, ...values] = await Promise.all([
    get(`${path}/policiesSet`, {}, signal).catch(() => []), get(`${namespacePath(place)}/policiesSet`, {}, signal).catch(() => []),
    ...POLICIES.map(([name]) => (name ? get(`${path}/${name}`, { applied: true }, signal).catch(() => undefined) : undefined)),
  ]);
  const done = () => topicPolicies(element, topic);
  const found = POLICIES.flatMap(([name, inNamespace, title, words, form, methods], at) => {
    if (!name || (!isSet(values[at]) && !form)) return [];
    const value = values[at];
    const where = !isSet(value) || UNSET.has(value) ? "default" : own.includes(name) ? "set on this topic"
      : ofNamespace.includes(inNamespace) ? ["set on ", h("a", { class: "link", href: namespaceLink(place) }, place)] : "default";
    const edit = form && (() => change({ path, place: shortTopic(topic), name, title, words, form, method: methods?.[0], value, own: own.includes(name), done }));
    return [[title, worded(words, value), where, edit]];
  });
  fill(element, found.length ? rows(found) : [h("dt", {}, "Policies"), h("dd", { class: "none" }, "none are known")]);
}

// The policies in force in a namespace: what is set there, and the broker's defaults.
export async function namespacePolicies(element, namespace, signal) {
  const path = namespacePath(namespace);
  const set = await get(`${path}/policiesSet`, {}, signal).catch(() => null);
  const values = await Promise.all(POLICIES.map(([, name]) => get(`${path}/${name}`, { applied: true }, signal).catch(() => undefined)));
  const done = () => namespacePolicies(element, namespace);
  fill(element, rows(POLICIES.flatMap(([, name, title, words, form, methods], at) => {
    const value = values[at];
    if (!isSet(value) && !form) return [];
    const own = set?.includes(name) ?? true;
    const edit = form && (() => change({ path, place: namespace, name, title, words, form, method: methods?.[1], value, own, done }));
    return [[title, worded(words, value), isSet(value) && own && !UNSET.has(value) ? "set here" : "default", edit]];
  })));
}

// --- permissions ---
const ACTIONS = ["produce", "consume"];

// `of`: the path of a resource in admin REST, and its noun and name on the command line.
export async function permissions(element, of, signal) {
  const found = await get(`${of.path}/permissions`, {}, signal);
  const done = () => permissions(element, of);
  const roles = Object.entries(found ?? {});
  const allow = h("button", { type: "button", class: "quiet", onclick: () => grant(of, done) }, "Allow a role");
  fill(element, roles.map(([role, actions]) => [h("dt", {}, role), h("dd", {}, actions.join(", "),
    h("button", { type: "button", class: "quiet", "aria-label": `Revoke: ${role}`, onclick: () => revoke(of, role, done) }, "Revoke"))]),
  h("dt", {}, roles.length ? "" : "Roles"), h("dd", { class: "none" }, roles.length ? "" : `none has permissions of its own in ${of.place}`, allow));
}

function grant({ path, noun, place }, done) {
  const role = h("input", { id: "role", required: true, autocomplete: "off", spellcheck: "false" });
  const boxes = ACTIONS.map((each) => h("input", { type: "checkbox", id: `may-${each}`, checked: true }));
  const chosen = () => ACTIONS.filter((_, at) => boxes[at].checked);
  ask("Allow a role", {
    content: [h("label", { htmlFor: "role" }, "Role"), role,
      boxes.map((box, at) => h("p", {}, box, h("label", { htmlFor: box.id }, ` ${ACTIONS[at]}`)))],
    action: "Allow", done,
    preview() {
      if (!chosen().length) throw new Error("Choose what the role may do.");
      return { text: `allows ${role.value} to ${chosen().join(" and ")} in ${place}, and nothing else there`,
        command: shell(`${noun} grant`, [place, role.value, ...chosen()]) };
    },
    run: () => call("POST", `${path}/permissions/${part(role.value)}`, { body: chosen() }),
  });
  role.focus();
}

function revoke({ path, noun, place }, role, done) {
  ask("Revoke permissions", {
    action: "Revoke", danger: true, done,
    preview: () => ({ text: `removes what ${role} was granted in ${place}`, command: shell(`${noun} revoke`, [place, role]) }),
    run: () => call("DELETE", `${path}/permissions/${part(role)}`),
  });
}
