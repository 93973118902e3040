// Dialogs: a heading, content, and one action.

import { h } from "./dom.js";

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

let gone = null;

// A message at the foot of the page that disappears after a while.
export function toast(words, kind = "") {
  document.querySelector(".toast")?.remove();
  clearTimeout(gone);
  const line = h("p", { class: `toast ${kind}`, role: "status" }, words);
  document.getElementById("dialogs").append(line);
  gone = setTimeout(() => line.remove(), 6000);
}
