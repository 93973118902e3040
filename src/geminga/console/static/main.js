// The frame around the pages: routing, keyboard, theme, and the dialog for a token.

import { showNamespace, showTenants } from "./actions.js";
import { BASE, Poller, askAgain, canSignIn, get, onUnauthorized, signIn } from "./api.js";
import { button, dialog, fill, h, skeleton } from "./dom.js";
import { showBoard, showRunning, showTopics } from "./lists.js";
import { showBroker, showSubscription, showTopic } from "./pages.js";

const main = document.getElementById("main");
const search = document.getElementById("search");
const offline = document.getElementById("offline");
let stop = () => {};
let shown = "";
let listed = "#/"; // the address of the list that was shown last, with its search
let wanted = 0; // the position to scroll to once the page has its content

const frame = {
  main,
  search,
  // Shows an error of a page's polling above the page, which keeps its content.
  told(error) {
    offline.hidden = !error;
    if (error?.status === 401) {
      fill(offline, `${error.message}. `, button("Give a token", () => (askAgain(), route())));
    } else if (error) offline.textContent = `${error.message}. The page shows the last known state.`;
  },
  // Shows a page of panels and polls for them. Before the first response, and once the resource is deleted, the
  // error replaces the panels. `told(error)` is called after each response.
  page(head, content, ask, every, told = () => {}) {
    const problem = h("p", { class: "refused", role: "alert", hidden: true });
    const waiting = skeleton();
    let seen = false;
    content.hidden = true;
    fill(main, head, problem, waiting, content);
    return new Poller(ask, every, (error) => {
      seen ||= !error;
      const instead = Boolean(error) && (!seen || error.status === 404);
      content.hidden = instead;
      waiting.hidden = true;
      problem.hidden = !instead;
      if (instead) problem.textContent = `${error.message}.`;
      frame.told(instead && error.status !== 401 ? null : error);
      frame.ready();
      told(error);
    });
  },
  // Going back shows the part that was shown before.
  ready() {
    if (!wanted) return;
    window.scrollTo(0, wanted);
    wanted = 0;
  },
  title(words) {
    document.title = words ? `${words} · Geminga` : "Geminga";
  },
};

function partsOf(path) {
  try {
    return path.split("/").slice(1).map(decodeURIComponent);
  } catch {
    return ["?"];
  }
}

function route() {
  const hash = location.hash || "#/";
  const [path, words = ""] = hash.slice(1).split("?");
  const query = new URLSearchParams(words);
  const [kind, ...names] = partsOf(path);
  const found = Object.hasOwn(PAGES, kind ?? "") ? PAGES[kind] : null;
  const [page, , show] = found?.[1] === names.length && names.every(Boolean) ? found : [kind, 0, () => { throw Error("No such page."); }];
  wanted = history.state?.scroll ?? 0;
  if (page === shown && stop.again) {
    stop.again(query);
    window.scrollTo(0, 0);
    return;
  }
  stop();
  document.querySelector("dialog[open]:not(.token)")?.close();
  const first = !shown;
  frame.told(null);
  fill(main);
  main.className = `page-${page}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (LISTS.has(page)) listed = hash;
  shown = page;
  window.scrollTo(0, 0);
  try {
    stop = show(query, ...names);
  } catch (error) {
    stop = () => {};
    fill(main, h("h1", {}, names.at(-1) ?? kind), h("p", { class: "refused" }, error.message));
  }
  // Screen readers and the keyboard continue at the heading.
  if (!first && document.activeElement !== search) main.querySelector("h1")?.focus({ preventScroll: true });
}

// Pages by the first word of the address: name, number of further names, how it is shown.
const PAGES = {
  "": ["board", 0, (query) => showBoard(frame, query)],
  s: ["subscription", 2, (query, topic, subscription) => showSubscription(frame, topic, subscription, query)],
  t: ["topic", 1, (query, topic) => showTopic(frame, topic, query)],
  n: ["namespace", 2, (_query, ...names) => showNamespace(frame, names.join("/"))],
  topics: ["topics", 0, (query) => showTopics(frame, query)],
  namespaces: ["namespaces", 0, () => showTenants(frame)],
  running: ["running", 0, () => showRunning(frame)],
  broker: ["broker", 0, () => showBroker(frame)],
};
const LISTS = new Set(["board", "topics"]);
history.scrollRestoration = "manual";
let noted = null;
addEventListener("scroll", () => {
  clearTimeout(noted);
  noted = setTimeout(() => {
    if (!wanted) history.replaceState({ scroll: window.scrollY }, "");
  }, 100);
}, { passive: true });

function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("theme"));
}

function storedTheme() {
  try {
    return localStorage.getItem("geminga-theme") ?? "";
  } catch {
    return "";
  }
}

applyTheme(storedTheme());
document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  applyTheme(next);
  try {
    localStorage.setItem("geminga-theme", (next === "dark") === dark ? "" : next);
  } catch { /* the browser stores nothing */ }
});

const KEYS = [
  ["/", "search"],
  ["j k, ↓ ↑", "next and previous row"],
  ["Enter", "open the row"],
  ["g s", "all subscriptions"],
  ["g t", "all topics"],
  ["g n", "tenants and namespaces"],
  ["g f", "functions and mirrors"],
  ["g b", "the broker"],
  ["t", "from a subscription to its topic"],
  ["+ − 0, ← →", "on the map: zoom in and out, all, left and right"],
  ["Esc", "back to the list and its search, or close"],
  ["?", "this list"],
];

function showKeys() {
  dialog("Keys", [
    h("dl", { class: "keys" }, KEYS.map(([keys, what]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)])),
  ]);
}

document.getElementById("help").addEventListener("click", showKeys);

const GO = { gs: "", gt: "topics", gn: "namespaces", gf: "running", gb: "broker" };
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input, textarea, select");
  if (event.key === "Escape") {
    if (typing) {
      event.preventDefault(); // a search field would forget its text
      event.target.blur();
    } else if (!LISTS.has(shown)) location.hash = listed;
    return;
  }
  if (typing) return;
  const pressed = before + event.key;
  before = event.key === "g" ? "g" : "";
  if (GO[pressed] !== undefined) location.hash = `#/${GO[pressed]}`;
  else if (event.key === "/") {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "?") showKeys();
  else if (event.key === "t" && shown === "subscription") main.querySelector("a.topic")?.click();
  else if (["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) step(event);
});

function step(event) {
  if (event.target.matches?.("canvas")) return;
  const links = [...main.querySelectorAll("a.row")];
  if (!links.length) return;
  const down = event.key === "j" || event.key === "ArrowDown";
  const at = links.indexOf(document.activeElement?.closest?.("tr, li")?.querySelector("a.row"));
  const next = at < 0 ? (down ? 0 : links.length - 1) : at + (down ? 1 : -1);
  links[Math.max(0, Math.min(links.length - 1, next))].focus();
  event.preventDefault();
}

search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !LISTS.has(shown)) {
    location.hash = `#/?search=${encodeURIComponent(search.value)}`;
  }
});
search.addEventListener("input", () => {
  if (LISTS.has(shown)) stop.search?.(search.value);
});

onUnauthorized(
  (reason) =>
    new Promise((answer) => {
      const field = h("input", {
        type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true,
      });
      const refused = reason ? h("p", { class: "refused", role: "alert" }, reason) : null;
      const box = dialog("This broker requires a token", [
        h("p", {}, "Give a token of a role with the needed permissions. It is kept in this page's memory, is sent only to ",
          "this broker, and is discarded when the page is closed."),
        refused, canSignIn ? button("Sign in with your company account", signIn, { class: "primary" }) : null,
        h("label", { htmlFor: "token" }, "Token"), field,
      ], {
        action: "Continue",
        done: (confirmed) => answer(confirmed && field.value.trim() ? field.value.trim() : null),
      });
      box.classList.add("token");
      field.focus();
    }),
);

addEventListener("hashchange", route);
route();

// Another cluster is another page, without this one's token.
get("/console/api/clusters").then((found) => {
  const choice = document.getElementById("cluster");
  fill(choice, found.map(({ name, path }) => h("option", { value: path }, name)));
  choice.value = `${BASE}/`;
  choice.hidden = !found.length;
  choice.addEventListener("change", () => location.assign(choice.value));
}, () => {});
