// Dialogs: a heading, fields, and one action, whose effect and command are shown before it is done.

import { button, fill, h } from "./dom.js";
import { command, sentence } from "./format.js";

const WAIT_MS = 250;

export function dialog(title, content, { action, done = () => {}, danger = false } = {}) {
  let confirmed = false;
  const form = h("form", { method: "dialog" },
    h("h2", {}, title),
    content,
    h("footer", {},
      button(action ? "Cancel" : "Close", () => box.close(), { class: "quiet" }),
      action ? h("button", { type: "submit", class: danger ? "danger" : "primary" }, action) : null),
  );
  const box = h("dialog", {}, form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    confirmed = true;
    box.close();
  });
  box.addEventListener("close", () => {
    box.remove();
    done(confirmed);
  });
  document.getElementById("dialogs").append(box);
  box.showModal();
  return box;
}

// A field by its label and attributes. Besides those of an input: `options` ([value, words] each) make a choice,
// `units` ([name, size] each) an amount, which is `none` while empty, `tag` another element; while `when(values)` is
// false it is hidden and may hold anything.
function field(id, [label, { options, units, none, value, when, tag = options ? "select" : "input", ...attributes } = {}]) {
  const choice = (tag, options, attributes) => h(tag, attributes, options?.map(([value, words = value]) => h("option", { value }, words)));
  const input = choice(tag, options, { id, autocomplete: "off", spellcheck: "false", ...attributes });
  const words = h("label", { htmlFor: id }, label);
  let unit = null;
  let read = () => input.value;
  if (attributes.type === "checkbox") {
    read = () => input.checked;
    return { element: h("p", {}, input, " ", words), read, when };
  }
  if (units) {
    const [name, size] = value > 0 ? units.find(([, each]) => value % each === 0) ?? units.at(-1) : units[0];
    Object.assign(input, { type: "number", min: 0, step: "any" });
    value = value > 0 ? value / size : value === 0 && none !== 0 ? 0 : "";
    unit = choice("select", units.map(([each]) => [each]), { "aria-label": `${label}, unit`, hidden: units.length === 1 });
    unit.value = name;
    read = () => (input.value === "" ? none : Math.round(Number(input.value) * units.find(([each]) => each === unit.value)[1]));
  }
  if (value !== undefined) input.value = value;
  return { element: h("div", { class: unit ? "fields" : "field" }, words, input, unit), read, when };
}

// A dialog of an action. `fields` by name; `preview(values)` returns or resolves to {text, command}, or throws what
// forbids the action; `run(values)` resolves to the words that report its success.
export function ask(title, { content, fields = {}, action, danger = false, preview, run, done = () => {} }) {
  const made = Object.entries(fields).map(([name, of]) => [name, field(`field-${name}`, of)]);
  const values = () => Object.fromEntries(made.map(([name, each]) => [name, each.read()]));
  const said = h("div", { class: "preview", role: "status" }, "…");
  let waiting = null;
  let asked = 0;
  const box = dialog(title, [content, made.map(([, each]) => each.element), said], {
    action, danger,
    async done(confirmed) {
      clearTimeout(waiting);
      asked++;
      if (!confirmed) return;
      try {
        toast((await run(values())) ?? `Done: ${title.toLowerCase()}`);
      } catch (error) {
        toast(error.message, "bad");
      }
      done();
    },
  });
  const go = box.querySelector("button[type=submit]");
  const arrange = () => {
    const now = values();
    for (const [, { element, when }] of made) {
      if (!when) continue;
      element.hidden = !when(now);
      for (const each of element.querySelectorAll("input, select")) each.disabled = element.hidden;
    }
  };
  const show = async () => {
    const turn = ++asked;
    if (!box.querySelector("form").checkValidity()) return fill(said, "…");
    try {
      const { text, command: equal } = await preview(values());
      if (turn !== asked) return;
      fill(said, sentence(text.charAt(0).toUpperCase() + text.slice(1)), ".", equal ? command(equal) : null);
      go.disabled = false;
    } catch (error) {
      if (turn === asked) fill(said, h("span", { class: "refused" }, error.message));
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(waiting);
    asked++;
    go.disabled = true;
    arrange();
    waiting = setTimeout(show, WAIT_MS);
  });
  go.disabled = true;
  arrange();
  show();
}

let gone = null;

// A message at the foot of the page that disappears after a while.
export function toast(words, kind = "") {
  document.querySelector(".toast")?.remove();
  clearTimeout(gone);
  const line = h("p", { class: `toast ${kind}`, role: "status" }, words);
  document.getElementById("dialogs").append(line);
  gone = setTimeout(() => line.remove(), 6000);
}
