// Dialogs: a heading, content, and one action, whose effect and command are shown before it is done.

import { command } from "./command.js";
import { fill, h } from "./dom.js";
import { sentence } from "./format.js";

const WAIT_MS = 250;

export function dialog(title, content, { action, done = () => {}, danger = false } = {}) {
  let confirmed = false;
  const form = h("form", { method: "dialog" },
    h("h2", {}, title),
    content,
    h("footer", {},
      h("button", { type: "button", class: "quiet", onclick: () => box.close() }, action ? "Cancel" : "Close"),
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

// A dialog of an action. `preview` returns or resolves to {text, command}, or throws what forbids the action;
// `run` resolves to the words that report its success.
export function ask(title, { content, action, danger = false, preview, run, done = () => {} }) {
  const said = h("div", { class: "preview", role: "status" }, "…");
  let waiting = null;
  let asked = 0;
  const box = dialog(title, [content, said], {
    action, danger,
    async done(confirmed) {
      clearTimeout(waiting);
      asked++;
      if (!confirmed) return;
      try {
        toast((await run()) ?? `Done: ${title.toLowerCase()}`);
      } catch (error) {
        toast(error.message, "bad");
      }
      done();
    },
  });
  const go = box.querySelector("button[type=submit]");
  const show = async () => {
    const turn = ++asked;
    if (!box.querySelector("form").checkValidity()) return fill(said, "…");
    try {
      const { text, command: equal } = await preview();
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
    waiting = setTimeout(show, WAIT_MS);
  });
  go.disabled = true;
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
