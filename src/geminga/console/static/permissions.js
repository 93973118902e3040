// Roles and what they may do in a namespace or on a topic.

import { call, get } from "./api.js";
import { shell } from "./command.js";
import { ask } from "./dialog.js";
import { fill, h } from "./dom.js";
import { part } from "./format.js";

const ACTIONS = ["produce", "consume"];

// `of`: the path of a resource in admin REST, and its noun and name on the command line.
export async function permissions(element, of, signal) {
  const found = await get(`${of.path}/permissions`, {}, signal);
  const done = () => permissions(element, of);
  const roles = Object.entries(found ?? {});
  const allow = h("button", { type: "button", class: "quiet", onclick: () => grant(of, done) }, "Allow a role");
  fill(element, roles.map(([role, actions]) => [h("dt", {}, role), h("dd", {}, actions.join(", "),
    h("button", { type: "button", class: "quiet", "aria-label": `Revoke: ${role}`, onclick: () => revoke(of, role, done) }, "Revoke"))]),
  h("dt", {}, roles.length ? "" : "Roles"), h("dd", { class: "none" }, roles.length ? "" : `none has permissions of its own in ${of.place}`, allow));
}

function grant({ path, noun, place }, done) {
  const role = h("input", { id: "role", required: true, autocomplete: "off", spellcheck: "false" });
  const boxes = ACTIONS.map((each) => h("input", { type: "checkbox", id: `may-${each}`, checked: true }));
  const chosen = () => ACTIONS.filter((_, at) => boxes[at].checked);
  ask("Allow a role", {
    content: [h("label", { htmlFor: "role" }, "Role"), role,
      boxes.map((box, at) => h("p", {}, box, h("label", { htmlFor: box.id }, ` ${ACTIONS[at]}`)))],
    action: "Allow", done,
    preview() {
      if (!chosen().length) throw new Error("Choose what the role may do.");
      return { text: `allows ${role.value} to ${chosen().join(" and ")} in ${place}, and nothing else there`,
        command: shell(`${noun} grant`, [place, role.value, ...chosen()]) };
    },
    run: () => call("POST", `${path}/permissions/${part(role.value)}`, { body: chosen() }),
  });
  role.focus();
}

function revoke({ path, noun, place }, role, done) {
  ask("Revoke permissions", {
    action: "Revoke", danger: true, done,
    preview: () => ({ text: `removes what ${role} was granted in ${place}`, command: shell(`${noun} revoke`, [place, role]) }),
    run: () => call("DELETE", `${path}/permissions/${part(role)}`),
  });
}
