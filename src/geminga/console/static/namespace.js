// One namespace: its policies in words, permissions, and topics.

import { get } from "./api.js";
import { fill, h, panel, skeleton } from "./dom.js";
import { bytes, count, perSecond, topicLink, topicName, topicsLink } from "./format.js";
import { permissions } from "./permissions.js";
import { namespacePath, namespacePolicies } from "./policies.js";
import { Poller } from "./poll.js";

const EVERY_MS = 10_000;
const TOPICS_SHOWN = 10;

export function showNamespace(frame, namespace) {
  frame.title(namespace);
  const path = namespacePath(namespace);
  const policies = h("dl", { class: "pairs" });
  const roles = h("dl", { class: "pairs" });
  const topics = h("tbody");
  const content = h("div", {},
    h("div", { class: "columns" }, panel("Policies", "of the namespace; topics may have their own", policies), panel("Permissions", "roles and what they may do", roles)),
    panel("Topics", h("a", { class: "link", href: topicsLink({ namespace }) }, "all of them"), h("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": "Topics" },
      h("table", {}, h("thead", {}, h("tr", {}, ["Topic", "In", "Out", "Stored", "Subscriptions"].map((each) => h("th", { scope: "col" }, each)))), topics))));
  const problem = h("p", { class: "refused", role: "alert", hidden: true });
  const waiting = skeleton();
  fill(frame.main, h("div", { class: "head" }, h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/topics" }, "Topics"), " / "),
    h("h1", { tabIndex: -1 }, namespace))), problem, waiting, content);
  const poller = new Poller(async (signal) => {
    const [, found] = await Promise.all([
      permissions(roles, { path, noun: "namespaces", place: namespace }, signal),
      get("/admin/v2/geminga/topics", { search: `://${namespace}/`, sort: "stored", limit: TOPICS_SHOWN }, signal).catch(() => ({ rows: [] })),
      namespacePolicies(policies, namespace, signal),
    ]);
    fill(topics, found.rows.map((row) => h("tr", {}, h("td", {}, h("a", { class: "row", href: topicLink(row.topic) }, topicName(row.topic).at(-1))),
      h("td", {}, perSecond(row.rateIn)), h("td", {}, perSecond(row.rateOut)), h("td", {}, bytes(row.stored)), h("td", {}, count(row.subscriptions)))));
  }, EVERY_MS, frame.toldInstead(content, problem, waiting));
  return () => poller.stop();
}
