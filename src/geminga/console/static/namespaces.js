// Tenants and their namespaces; and one namespace: its policies in words, permissions, and topics.

import { call, get } from "./api.js";
import { option, shell } from "./command.js";
import { ask } from "./dialog.js";
import { fill, h, keyed, panel, table, text } from "./dom.js";
import { bytes, count, namespaceLink, part, perSecond, plural, topicLink, topicName, topicsLink } from "./format.js";
import { namespacePath, namespacePolicies, permissions } from "./policies.js";

const EVERY_MS = 10_000;
const TOPICS_SHOWN = 10;
const TENANTS_SHOWN = 100;
const tenantPath = (tenant) => `/admin/v2/tenants/${part(tenant)}`;
const lines = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean); // roles may have spaces and commas
const topicsOf = (namespace, limit, signal) => get("/admin/v2/geminga/topics", { search: `://${namespace}/`, sort: "stored", limit }, signal);

export function showTenants(frame) {
  frame.title("Namespaces");
  const rows = h("tbody");
  const more = h("p", { class: "none" });
  const content = h("div", { class: "left" }, panel("Tenants", "owners of namespaces", table(["Tenant", "Namespaces", "Administrators", "Actions"], rows), more));
  const done = () => poller.now();
  const head = h("div", { class: "head" }, h("h1", { tabIndex: -1 }, "Namespaces"), h("div", { class: "actions" },
    h("button", { type: "button", onclick: () => tenantForm("", [], done) }, "Create a tenant"),
    h("button", { type: "button", onclick: () => createNamespace(done) }, "Create a namespace")));
  const poller = frame.page(head, content, async (signal) => {
    const tenants = (await get("/admin/v2/tenants", {}, signal)).sort();
    const found = await Promise.all(tenants.slice(0, TENANTS_SHOWN).map((each) => Promise.all([
      each, get(`/admin/v2/namespaces/${part(each)}`, {}, signal), get(tenantPath(each), {}, signal)])));
    const button = (label, act, name) => h("button", { type: "button", class: "quiet", "aria-label": `${label}: ${name}`, onclick: act }, label);
    keyed(rows, found, JSON.stringify, ([name, namespaces, { adminRoles }]) => h("tr", {}, h("td", {}, h("b", {}, name)),
      h("td", {}, namespaces.sort().map((each, at) => [at ? ", " : "", h("a", { class: "link", href: namespaceLink(each) }, each.slice(name.length + 1))]), namespaces.length ? "" : "none"),
      h("td", {}, adminRoles?.join(", ") || "super users only"),
      h("td", {}, button("Change", () => tenantForm(name, adminRoles ?? [], done), name), button("Delete", () => deleteTenant(name, namespaces, done), name))), () => {});
    text(more, tenants.length > TENANTS_SHOWN ? `and ${count(tenants.length - TENANTS_SHOWN)} more` : "");
  }, EVERY_MS);
  return () => poller.stop();
}

const field = (id, title, attributes, tag = "input") => {
  const input = h(tag, { id, autocomplete: "off", spellcheck: "false", ...attributes });
  return [input, [h("label", { htmlFor: id }, title), input]];
};

// Creates a tenant, or with a name replaces the roles of that one.
function tenantForm(tenant, roles, done) {
  const [name, named] = field("new-tenant", "Name", { required: true, value: tenant, disabled: Boolean(tenant), pattern: "[\\-=:.\\w]+" });
  const [admins, administrators] = field("admin-roles", "Roles that administer it, one on each line (may be empty)", { value: roles.join("\n"), rows: 3 }, "textarea");
  ask(tenant ? "Change the tenant" : "Create a tenant", {
    content: [named, administrators], action: tenant ? "Change" : "Create", done,
    preview: () => {
      const then = lines(admins.value);
      if (tenant && !then.length) throw new Error("Name at least one role.");
      return {
        text: tenant ? `now: ${roles.join(", ") || "super users only"}; then: ${then.join(", ")} may administer ${tenant}`
          : `creates ${name.value}, which ${then.length ? `${then.join(", ")} may administer` : "super users administer"}`,
        command: shell(`tenants ${tenant ? "update" : "create"}`, [name.value], then.map((each) => option("--admin-role", each)).join("")),
      };
    },
    async run() {
      const info = tenant ? await get(tenantPath(tenant)) : { allowedClusters: await get("/admin/v2/clusters") };
      await call(tenant ? "POST" : "PUT", tenantPath(name.value), { body: { ...info, adminRoles: lines(admins.value) } });
      return `${name.value} is ${tenant ? "changed" : "created"}`;
    },
  });
  (tenant ? admins : name).focus();
}

function createNamespace(done) {
  const [name, named] = field("new-namespace", "Tenant and name", { required: true, value: "public/", pattern: "[^\\/]+\\/[\\-=:.\\w]+" });
  ask("Create a namespace", {
    content: named, action: "Create", done,
    preview: () => ({ text: `creates ${name.value}, with the broker's policies`, command: shell("namespaces create", [name.value]) }),
    async run() {
      await call("PUT", namespacePath(name.value));
      location.hash = namespaceLink(name.value);
      return `${name.value} is created`;
    },
  });
  name.focus();
}

// `held`: resolves to the words for what is in the tenant or namespace, "" for nothing; that needs a tick.
function deletion(noun, name, path, held, done) {
  const force = h("input", { type: "checkbox", id: "with-all" });
  ask(`Delete the ${noun}`, {
    content: h("p", {}, force, h("label", { htmlFor: "with-all" }, " with everything in it, for ever")), action: "Delete", danger: true, done,
    async preview() {
      const inside = await held();
      if (inside && !force.checked) throw new Error(`${name} has ${inside}.`);
      return { text: `deletes ${name}${inside ? `, ${inside} and all messages` : ", which is empty"}`, command: shell(`${noun}s delete`, [name], force.checked ? "--force" : "") };
    },
    async run() {
      await call("DELETE", path, { query: force.checked ? { force: true } : {} });
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
  const topics = h("tbody");
  const content = h("div", {},
    h("div", { class: "columns" }, panel("Policies", "of the namespace; topics may have their own", policies), panel("Permissions", "roles and what they may do", roles)),
    panel("Topics", h("a", { class: "link", href: topicsLink({ namespace }) }, "all of them"), table(["Topic", "In", "Out", "Stored", "Subscriptions"], topics)));
  const head = h("div", { class: "head" }, h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/namespaces" }, "Namespaces"), " / "),
    h("h1", { tabIndex: -1 }, namespace)), h("div", { class: "actions" },
    Object.entries(NAMESPACE_ACTIONS).map(([name, [title]]) => h("button", { type: "button", onclick: () => namespaceAction(namespace, name) }, title)),
    h("button", { type: "button", onclick: () => deleteNamespace(namespace) }, "Delete")));
  const poller = frame.page(head, content, async (signal) => {
    const [, found] = await Promise.all([
      permissions(roles, { path, noun: "namespaces", place: namespace }, signal),
      topicsOf(namespace, TOPICS_SHOWN, signal).catch(() => ({ rows: [] })),
      namespacePolicies(policies, namespace, signal),
    ]);
    fill(topics, found.rows.map((row) => h("tr", {}, h("td", {}, h("a", { class: "row", href: topicLink(row.topic) }, topicName(row.topic).at(-1))),
      h("td", {}, perSecond(row.rateIn)), h("td", {}, perSecond(row.rateOut)), h("td", {}, bytes(row.stored)), h("td", {}, count(row.subscriptions)))));
  }, EVERY_MS);
  return () => poller.stop();
}
