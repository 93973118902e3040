// Publishes one message: what the command `geminga produce` does.

import { call } from "./api.js";
import { dialog, toast } from "./dialog.js";
import { fill, h } from "./dom.js";
import { topicPath } from "./format.js";

export const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);

export function produce(topic, done) {
  const value = h("textarea", { id: "new-value", rows: 5, spellcheck: "false" });
  const key = h("input", { id: "new-key", autocomplete: "off", spellcheck: "false" });
  const said = h("div", { class: "preview" });
  const short = topic.replace(/^persistent:\/\//, "");
  const tell = () => fill(said, "Stores one message, which every subscription of the topic receives.",
    h("code", {}, `geminga produce ${quoted(short)} ${quoted(value.value)}${key.value ? ` --key ${quoted(key.value)}` : ""}`));
  const box = dialog("Publish a message", [
    h("label", { htmlFor: "new-value" }, "Value, as text"), value, h("label", { htmlFor: "new-key" }, "Key (may be empty)"), key, said,
  ], {
    action: "Publish",
    async done(confirmed) {
      if (!confirmed) return;
      try {
        const { id } = await call("POST", `${topicPath(topic)}/message`, { body: { payload: value.value, key: key.value || null } });
        toast(`Stored as ${id}`);
      } catch (error) {
        toast(error.message, "bad");
      }
      done();
    },
  });
  box.addEventListener("input", tell);
  tell();
  value.focus();
}
