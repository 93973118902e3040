// Publishes one message: what the command `geminga produce` does.

import { call } from "./api.js";
import { option, shell, shortTopic } from "./command.js";
import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { topicPath } from "./format.js";

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
