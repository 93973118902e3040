// Policies in words, and where each was set: on the topic, its namespace, or nowhere.

import { get } from "./api.js";
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

// Path of the topic's policy, path of the namespace's, title, and the words for a value; null: not of topics.
const POLICIES = [
  ["retention", "retention", "Acknowledged messages are kept", retention],
  ["messageTTL", "messageTTL", "Messages expire", (value) => (value > 0 ? `after ${span(value)}` : "never")],
  ["backlogQuotaMap", "backlogQuotaMap", "Backlog of a subscription", quotas],
  ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer", "Unacknowledged, a consumer", (value) => limit(value)],
  ["maxUnackedMessagesOnSubscription", "maxUnackedMessagesPerSubscription", "Unacknowledged, a subscription", (value) => limit(value)],
  ["maxProducers", "maxProducersPerTopic", "Producers of a topic", (value) => limit(value)],
  ["maxConsumers", "maxConsumersPerTopic", "Consumers of a topic", (value) => limit(value)],
  ["maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "Subscriptions of a topic", (value) => limit(value)],
  [null, "maxTopicsPerNamespace", "Topics of the namespace", (value) => limit(value)],
  ["publishRate", "publishRate", "Publishing", (value) => throttle(value.publishThrottlingRateInMsg, value.publishThrottlingRateInByte)],
  ["dispatchRate", "dispatchRate", "Delivery, the topic", dispatch],
  ["subscriptionDispatchRate", "subscriptionDispatchRate", "Delivery, a subscription", dispatch],
  ["deduplicationEnabled", "deduplication", "Deduplication", (value) => (value ? "on" : "off")],
  ["delayedDelivery", "delayedDelivery", "Delayed delivery", (value) => (value.active ? `allowed, exact to ${value.tickTime} ms` : "not allowed")],
  ["compactionThreshold", "compactionThreshold", "Compaction", (value) => (value > 0 ? `from ${bytes(value)} on` : "only on request")],
  ["redeliverUnacked", "redeliverUnacked", "Redelivery of what stays unacknowledged", (value) => (value.afterSeconds > 0 ? `after ${span(value.afterSeconds)}` : "never")],
  ["inactiveTopicPolicies", "inactiveTopicPolicies", "Unused topics", (value) => (value.deleteWhileInactive ? `are deleted after ${span(value.maxInactiveDurationSeconds)}` : "stay")],
  [null, "autoTopicCreation", "Topics are created by use", (value) => (value.allowAutoTopicCreation ? (value.topicType === "partitioned" ? `with ${plural(value.defaultNumPartitions, "partition")}` : "yes") : "no")],
  ["schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "New schemas must be", (value) => (value === "UNDEFINED" ? "as the broker requires" : String(value).toLowerCase().replaceAll("_", " "))],
  ["schemaValidationEnforced", "schemaValidationEnforced", "Producers need a schema", yes],
  [null, "encryptionRequired", "Encryption is required", yes],
  ["offloadPolicies", "offloadPolicies", "Offloading", (value) => (value.managedLedgerOffloadDriver ? `to ${value.managedLedgerOffloadBucket ?? value.managedLedgerOffloadDriver}` : "off")],
];

export const namespacePath = (namespace) => `/admin/v2/namespaces/${namespace.split("/").map(part).join("/")}`;
const UNSET = new Set([false, "UNDEFINED"]);
const isSet = (value) => value !== undefined && value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length);
const worded = (words, value) => {
  try {
    return words(value);
  } catch {
    return JSON.stringify(value);
  }
};

const rows = (found) => found.map(([title, words, where]) => [h("dt", {}, title), h("dd", {}, words, h("small", {}, where))]);

// The policies in force on a topic.
export async function topicPolicies(element, topic, signal) {
  const { tenant, namespace } = nameOf(topic);
  const path = topicPath(topic);
  const place = `${tenant}/${namespace}`;
  const [own, ofNamespace, ...values] = await Promise.all([
    get(`${path}/policiesSet`, {}, signal).catch(() => []), get(`${namespacePath(place)}/policiesSet`, {}, signal).catch(() => []),
    ...POLICIES.map(([name]) => (name ? get(`${path}/${name}`, { applied: true }, signal).catch(() => undefined) : undefined)),
  ]);
  const found = POLICIES.flatMap(([name, inNamespace, title, words], at) => {
    if (!name || !isSet(values[at])) return [];
    const where = UNSET.has(values[at]) ? "default" : own.includes(name) ? "set on this topic"
      : ofNamespace.includes(inNamespace) ? ["set on ", h("a", { class: "link", href: namespaceLink(place) }, place)] : "default";
    return [[title, worded(words, values[at]), where]];
  });
  fill(element, found.length ? rows(found) : [h("dt", {}, "Policies"), h("dd", { class: "none" }, "none are known")]);
}

// The policies in force in a namespace: what is set there, and the broker's defaults.
export async function namespacePolicies(element, namespace, signal) {
  const path = namespacePath(namespace);
  const set = await get(`${path}/policiesSet`, {}, signal).catch(() => null);
  const values = await Promise.all(POLICIES.map(([, name]) => get(`${path}/${name}`, { applied: true }, signal).catch(() => undefined)));
  fill(element, rows(POLICIES.flatMap(([, name, title, words], at) => (isSet(values[at])
    ? [[title, worded(words, values[at]), set && !set.includes(name) || UNSET.has(values[at]) ? "default" : "set here"]] : []))));
}
