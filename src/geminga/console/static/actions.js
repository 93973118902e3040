// Actions on a subscription. Each dialog shows the effect before the action is done.

import { get, post } from "./api.js";
import { dialog, toast } from "./dialog.js";
import { fill, h } from "./dom.js";
import { count, part, sentence, topicPath } from "./format.js";
import { SchemaBook, messageItem } from "./messages.js";

const WAIT_MS = 250;
const UNITS = { seconds: 1, minutes: 60, hours: 3600, days: 86400 };

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
      const end = "9223372036854775807";
      const where = () => {
        if (kind.value === "message") return { message: message.value.trim() };
        if (kind.value === "earliest") return { message: "-1:-1" };
        if (kind.value === "latest") return { message: `${end}:${end}` };
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
          // As text: these numbers exceed JavaScript's integers.
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
    button("redeliver", "Redeliver"), button("expire", "Expire"), button("skip", "Skip"), button("reset", "Reset"));
}

function perform(name, topic, subscription, consumers, done) {
  const { title, action, words, danger, form } = ACTIONS[name];
  const path = subscriptionPath(topic, subscription);
  const { fields, preview, run } = form(consumers);
  const said = h("div", { class: "preview", role: "status" }, "…");
  const box = dialog(title, [
    h("p", {}, words), h("div", { class: "fields" }, fields), said,
  ], {
    action, danger,
    async done(confirmed) {
      clearTimeout(waiting);
      if (!confirmed) return;
      try {
        await run(path);
        toast(`Done: ${title.toLowerCase()} of ${subscription}`);
      } catch (error) {
        toast(error.message, "bad");
      }
      done();
    },
  });
  const go = box.querySelector("button[type=submit]");
  let waiting = null;
  let asked = 0;
  const show = async () => {
    const turn = ++asked;
    go.disabled = true;
    if (!box.querySelector("form").checkValidity()) return fill(said, "…");
    const [what, query] = preview();
    try {
      const found = await get(`${path}/preview/${what}`, query);
      if (turn !== asked) return;
      fill(said, sentence(found.text.charAt(0).toUpperCase() + found.text.slice(1)), ".",
        found.command ? h("code", {}, found.command) : null);
      go.disabled = false;
    } catch (error) {
      if (turn === asked) fill(said, h("span", { class: "refused" }, error.message));
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(waiting);
    go.disabled = true;
    waiting = setTimeout(show, WAIT_MS);
  });
  show();
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

export async function skipEntry(topic, subscription, id, done) {
  const [ledger, entry] = id.split(":");
  dialog(`Skip ${id}`, [
    h("p", {}, `Acknowledges this entry for ${subscription}, delivered or not. It is not redelivered to this subscription.`),
  ], {
    action: "Skip it", danger: true,
    async done(confirmed) {
      if (!confirmed) return;
      try {
        await post(`${subscriptionPath(topic, subscription)}/skip/${ledger}/${entry}`);
        toast(`${id} is skipped`);
      } catch (error) {
        toast(error.message, "bad");
      }
      done();
    },
  });
}

export const heldWords = (number) => `${count(number)} message${number === 1 ? "" : "s"}`;
