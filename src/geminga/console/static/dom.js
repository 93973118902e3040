// Creation of elements without markup: a broker's data becomes text, never HTML.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "tabIndex", "htmlFor", "className"]);

export function h(tag, attributes, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "href" && !/^[#/]/.test(value)) throw new Error("links lead nowhere else");
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Sets an element's text only if it differs: this saves painting and keeps a selection.
export function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

// Keeps the elements of rows that stay, in the order of the rows.
export function keyed(parent, rows, key, make, update) {
  const known = parent.rowsByKey ?? (parent.rowsByKey = new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const row of rows) {
    const name = key(row);
    wanted.add(name);
    let element = known.get(name);
    if (!element) {
      element = make(row);
      known.set(name, element);
    }
    update(element, row);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [name, element] of known) {
    if (!wanted.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
}

export const panel = (title, small, ...content) =>
  h("section", { class: "panel" }, h("h2", {}, title, small ? h("small", {}, small) : null), content);

export const button = (words, act, attributes) => h("button", { type: "button", onclick: act, ...attributes }, words);
export const link = (href, words, kind = "link") => h("a", { class: kind, href }, words);
export const faint = (...words) => h("p", { class: "none" }, words);

// The head of a page: the way to it, its title, a sentence, and its actions.
export const head = (crumbs, title, said, ...actions) => h("div", { class: "head" },
  h("div", {}, crumbs.length ? h("p", { class: "crumbs" }, crumbs.map((each) => [each, " / "])) : null, title.localName === "h1" ? title : h("h1", { tabIndex: -1 }, title), said),
  actions.length ? h("div", { class: "actions" }, actions) : null);

// A table that scrolls sideways, also by keyboard, and `nothing` instead of it while it has no rows. `read(row)` returns
// the contents of a row's cells; `name(row)` makes that of a first one, once: a link keeps the focus.
// Rows that are `fixed` by their key are made once.
export function table(titles, { key, name, read, nothing = "", fixed = false }) {
  const body = h("tbody");
  const scroll = h("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, h("tr", {}, titles.map((each) => h("th", { scope: "col" }, each)))), body));
  const none = faint(nothing);
  const make = (row) => h("tr", {}, titles.map((_, at) => h("td", {}, at ? null : name?.(row))));
  const update = (element, row) => {
    if (fixed && element.made) return;
    element.made = true;
    read(row).forEach((value, at) => {
      const cell = element.cells[name ? at + 1 : at];
      if (typeof value === "string") text(cell, value);
      else fill(cell, value);
    });
  };
  return {
    element: [none, scroll], scroll, none,
    show(rows) {
      none.hidden = rows.length > 0;
      scroll.hidden = !rows.length;
      keyed(body, rows, key, make, update);
    },
  };
}

export const pairs = (found) => found.map(([title, ...value]) => [h("dt", {}, title), h("dd", {}, value)]);
export const fact = (title, value, small) => h("div", {}, h("dt", {}, title), h("dd", {}, value, small ? h("small", {}, small) : null));

// What is shown until the first answer: blocks of the height of the content.
export const skeleton = () => h("div", { class: "skeletons", "aria-hidden": "true" }, Array.from({ length: 4 }, () => h("i")));
