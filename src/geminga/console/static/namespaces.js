// Policies in words, and where each was set: on the topic, its namespace, or nowhere. Roles and their permissions. Tenants,
// their namespaces, and the page of one.

import { call, get } from "./api.js";
import { ask } from "./dialog.js";
import { button, faint, fill, h, head, link, pairs, panel, table, text } from "./dom.js";
import { SPANS, bytes, count, duration, nameOf, namespaceLink, option, part, perSecond, plural, shell, shortTopic, topicLink, topicName, topicPath, topicsLink } from "./format.js";

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

// Path of the topic's policy (null: not of topics), path of the namespace's, title, the words for a value, its fields,
// and the methods that set it there where not POST.
const POLICIES = [
  ["retention", "retention", "Acknowledged messages are kept", retention, [["retentionTimeInMinutes", "Time", "minutes", -1], ["retentionSizeInMB", "Size", "megabytes", -1]]],
  ["messageTTL", "messageTTL", "Messages expire", (value) => (value > 0 ? `after ${span(value)}` : "never"), [["", "After", "seconds", 0]]],
  ["backlogQuotaMap", "backlogQuotaMap", "Backlog of a subscription", quotas, [["limitSize", "Size", "bytes", -1], ["limitTime", "Age", "seconds", -1], ["policy", "When exceeded", Object.keys(BEYOND)]]],
  ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer", "Unacknowledged, a consumer", (value) => limit(value), COUNT],
  ["maxUnackedMessagesOnSubscription", "maxUnackedMessagesPerSubscription", "Unacknowledged, a subscription", (value) => limit(value), COUNT],
  ["maxProducers", "maxProducersPerTopic", "Producers of a topic", (value) => limit(value), COUNT],
  ["maxConsumers", "maxConsumersPerTopic", "Consumers of a topic", (value) => limit(value), COUNT],
  ["maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "Subscriptions of a topic", (value) => limit(value), COUNT],
  ["maxConsumersPerSubscription", "maxConsumersPerSubscription", "Consumers of a subscription", (value) => limit(value), COUNT],
  [null, "maxTopicsPerNamespace", "Topics of the namespace", (value) => limit(value), COUNT],
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
  [null, "autoTopicCreation", "Topics are created by use", (value) => (value.allowAutoTopicCreation ? (value.topicType === "partitioned" ? `with ${plural(value.defaultNumPartitions, "partition")}` : "yes") : "no"), SWITCH("allowAutoTopicCreation")],
  ["autoSubscriptionCreation", "autoSubscriptionCreation", "Subscriptions are created by use", (value) => yes(value.allowAutoSubscriptionCreation), SWITCH("allowAutoSubscriptionCreation")],
  ["subscriptionTypesEnabled", "subscriptionTypesEnabled", "Types of subscriptions", (value) => value.join(", "), TYPES.map((each) => [each, each, "member"])],
  ["schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "New schemas must be", (value) => (value === "UNDEFINED" ? "as the broker's setting says" : String(value).toLowerCase().replaceAll("_", " ")), [["", "Strategy", STRATEGIES]], ["PUT", "PUT"]],
  ["schemaValidationEnforced", "schemaValidationEnforced", "Producers need a schema", yes, SWITCH()],
  [null, "encryptionRequired", "Encryption is required", yes, SWITCH()],
  ["offloadPolicies", "offloadPolicies", "Offloading", (value) => (value.managedLedgerOffloadDriver ? `to ${value.managedLedgerOffloadBucket ?? value.managedLedgerOffloadDriver}` : "off")],
];

const namespacePath = (namespace) => `/admin/v2/namespaces/${namespace.split("/").map(part).join("/")}`;
const UNSET = new Set([false, "UNDEFINED"]);
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

// The field of a dialog for a field of a policy.
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
  // The values of the form as the policy has them.
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

// What a limit of age would expire at once.
async function expired(path, seconds) {
  if (!(seconds > 0)) return "";
  if ((await get(`${path}/partitions`))?.partitions) return "; older messages expire at once"; // previews are of one partition
  const { subscriptions } = await get(`${path}/stats`);
  const found = await Promise.all(Object.keys(subscriptions).slice(0, 20).map((each) => get(`${path}/subscription/${part(each)}/preview/expire`, { seconds })));
  return `; ${plural(found.reduce((sum, each) => sum + each.messages, 0), "message")} of ${plural(found.length, "subscription")} expire at once`;
}

const quiet = (words, name, act) => button(words, act, { class: "quiet", "aria-label": `${words}: ${name}` });
const rows = (found) => pairs(found.map(([title, words, where, edit]) => [title, words, h("small", {}, where), edit ? quiet("Change", title, edit) : null]));

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
  fill(element, rows(POLICIES.flatMap(([, name, title, words, form, methods], at) => {
    const value = values[at];
    if (!name || (!isSet(value) && !form)) return [];
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
  fill(element, pairs(roles.map(([role, actions]) => [role, actions.join(", "), quiet("Revoke", role, () => revoke(of, role, done))])),
    h("dt", {}, roles.length ? "" : "Roles"), h("dd", { class: "none" }, roles.length ? "" : `none has permissions of its own in ${of.place}`,
      button("Allow a role", () => grant(of, done), { class: "quiet" })));
}

function grant({ path, noun, place }, done) {
  const chosen = (values) => ACTIONS.filter((each) => values[each]);
  ask("Allow a role", {
    fields: { role: ["Role", { required: true }], ...Object.fromEntries(ACTIONS.map((each) => [each, [each, { type: "checkbox", checked: true }]])) },
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

// Properties of a topic: a text for each name.
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

// Rarer actions on a namespace: title, effect, method and path.
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
