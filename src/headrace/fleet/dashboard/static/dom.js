// Elements and small changes to them. Whatever comes from elsewhere becomes text: there is no way to make markup of it.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: class, data-*, aria-*, on… listeners, other attributes; children are elements or text. */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set text only where it has changed: nothing else of the page is laid out again. */
export function setText(node, text) {
  if (node.shown !== text) {
    node.shown = text;
    node.textContent = text;
  }
}

export function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** Share 0..1 of a meter, in whole percent. */
export function setMeter(node, share, tone = "") {
  const width = share === null || share === undefined ? 0 : Math.max(0, Math.min(1, share));
  const percent = `${Math.round(width * 100)}%`;
  const bar = node.firstElementChild;
  if (bar.shown !== percent) {
    bar.shown = percent;
    bar.style.width = percent;
  }
  setData(node, "tone", tone);
}

export function meter() {
  return el("span", { class: "meter", "aria-hidden": "true" }, el("i"));
}

const rowsOf = new WeakMap();

/** Make the children of `parent` match `items`: rows that stay are changed, not made again. */
export function keyed(parent, items, keyOf, make, update) {
  if (!rowsOf.has(parent)) rowsOf.set(parent, new Map());
  const rows = rowsOf.get(parent);
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (seen.has(key)) continue;
    seen.add(key);
    let row = rows.get(key);
    if (!row) rows.set(key, (row = make(item)));
    update(row, item);
    if (row.element === place) place = place.nextElementSibling;
    else parent.insertBefore(row.element, place);
  }
  for (const [key, row] of rows) {
    if (!seen.has(key)) {
      row.element.remove();
      rows.delete(key);
    }
  }
}
