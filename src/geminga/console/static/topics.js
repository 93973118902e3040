// All topics, those without subscriptions included: a partitioned topic is one row.

import { call, get } from "./api.js";
import { option, pasted, shell, shortTopic } from "./command.js";
import { ask } from "./dialog.js";
import { fill, h, text } from "./dom.js";
import { LEVELS, STATES, bytes, count, plural, perSecond, rate, sentence, subscriptionLink, topicLink, topicName, topicPath } from "./format.js";
import { List, opens } from "./list.js";

const COLUMNS = [
  ["name", "Topic", "", "name"],
  ["partitions", "Partitions", "", null],
  ["in", "In", "messages per second published", "in"],
  ["out", "Out", "messages per second delivered", "out"],
  ["stored", "Stored", "bytes of entries", "stored"],
  ["subscriptions", "Subscriptions", "", "subscriptions"],
  ["state", "State", "of the subscription in most trouble", "trouble"],
  ["schema", "Schema", "", null],
];
const DEAD_LETTERS = /-(DLQ|RETRY)$/;

export function showTopics(frame, query) {
  frame.title("Topics");
  const headline = h("h1", { "aria-live": "polite", tabIndex: -1 }, "Topics");
  const subline = h("p", { class: "subline" }, "…");
  const namespaces = h("select", { "aria-label": "Namespace", onchange: () => list.go({ namespace: namespaces.value, page: 0 }) });
  const list = new List(frame, query, {
    base: "#/topics", path: "/admin/v2/geminga/topics", columns: COLUMNS, order: "name",
    key: (row) => row.topic, makeRow, empty,
    show(found, state) {
      if (namespaces.options.length) namespaces.value = state.namespace;
      const where = state.namespace ? ` in ${state.namespace}` : "";
      text(headline, `${plural(found.matching, "topic")}${where}${state.search ? ` like “${state.search}”` : ""}`);
      text(subline, [found.totals ? `${rate(found.totals.msgRateIn)} messages/s in · ${rate(found.totals.msgRateOut)}/s out` : "",
        found.totals?.leftOut ? `${count(found.totals.leftOut)} more are not shown: search for them` : "",
        found.complete ? "" : "still loading"].filter(Boolean).join(" · "));
    },
    told: frame.told,
  });
  fill(frame.main, h("section", { class: "summary" }, headline, subline, h("div", { class: "chips" }, namespaces,
    h("button", { type: "button", onclick: () => create(list.state.namespace) }, "Create a topic"))), list.table, list.blank, list.pager);
  list.begin();
  const chosen = list.state.namespace;
  const offer = (names) => {
    fill(namespaces, h("option", { value: "" }, "All namespaces"), names.map((each) => h("option", { value: each }, each)));
    namespaces.value = list.state.namespace;
  };
  offer(chosen ? [chosen] : []);
  allNamespaces().then((names) => offer(chosen && !names.includes(chosen) ? [chosen, ...names] : names), () => {});
  return list.life();
}

export async function allNamespaces() {
  const tenants = await get("/admin/v2/tenants");
  const found = await Promise.all(tenants.slice(0, 100).map((each) => get(`/admin/v2/namespaces/${encodeURIComponent(each)}`).catch(() => [])));
  return found.flat().sort();
}

function empty(found, state) {
  if (!found.complete) return h("p", {}, "Loading all topics …");
  if (state.search || state.namespace) return h("p", {}, "No topic matches.");
  return [h("p", {}, "There is no topic yet. Create one above, or publish: "), h("pre", { tabIndex: 0 }, pasted("geminga produce my-topic hello"))];
}

function makeRow(row) {
  const link = h("a", { class: "row", href: topicLink(row.topic) }, h("span", { class: "topic" }, topicName(row.topic)));
  const marks = h("span", { class: "marks" });
  const cells = Object.fromEntries(COLUMNS.slice(1).map(([name, title]) => [name, h("td", { class: `number ${name}`, "data-title": title })]));
  const dot = h("span", { class: "dot", role: "img" });
  const element = opens(h("tr", {}, h("td", { class: "name" }, h("div", {}, dot, h("div", {}, link, marks))), Object.values(cells)), link);
  let said = "";
  element.update = (now) => {
    const level = LEVELS[now.trouble];
    element.className = level;
    dot.setAttribute("aria-label", STATES[now.trouble] ?? "Nothing waits");
    text(cells.partitions, now.partitions ? count(now.partitions) : "");
    text(cells.in, now.awake ? perSecond(now.rateIn) : "");
    text(cells.out, now.awake ? perSecond(now.rateOut) : "");
    text(cells.stored, bytes(now.stored));
    text(cells.subscriptions, now.subscriptions ? count(now.subscriptions) : "none");
    text(cells.schema, now.schema ?? "");
    const key = `${now.worst} ${now.sentence} ${now.trouble} ${now.compacted}`;
    if (key === said) return;
    said = key;
    fill(cells.state, now.subscriptions ? h("span", {}, STATES[now.trouble] ?? "Nothing waits") : "");
    const kind = DEAD_LETTERS.exec(now.topic)?.[1];
    fill(marks, kind ? h("span", { class: "tag warn" }, kind === "DLQ" ? "dead letters" : "retries") : null,
      now.compacted ? h("span", { class: "tag" }, "compacted") : null,
      now.trouble > 2 && now.worst ? h("p", { class: "sentence" }, h("a", { class: "link", href: subscriptionLink(now.topic, now.worst) }, now.worst), ": ", sentence(now.sentence)) : null);
  };
  return element;
}

function create(namespace) {
  const name = h("input", { required: true, id: "new-topic", value: `${namespace || "public/default"}/`, autocomplete: "off", spellcheck: "false", pattern: "[^/]+/[^/]+/.+" });
  const partitions = h("input", { type: "number", min: 0, value: 0, id: "new-partitions" });
  const short = () => shortTopic(name.value.trim());
  const full = () => `persistent://${short()}`;
  ask("Create a topic", {
    content: [h("label", { htmlFor: "new-topic" }, "Tenant, namespace and name"), name,
      h("label", { htmlFor: "new-partitions" }, "Partitions (0: not partitioned)"), partitions],
    action: "Create",
    preview: () => ({
      text: `creates ${short()}`,
      command: shell("topics create", [short()], option("--partitions", Number(partitions.value) || "")),
    }),
    async run() {
      const number = Number(partitions.value);
      await call("PUT", topicPath(full()) + (number ? "/partitions" : ""), { body: number ? String(number) : "{}" });
      location.hash = topicLink(full());
      return `${full()} is created`;
    },
  });
  name.focus();
}
