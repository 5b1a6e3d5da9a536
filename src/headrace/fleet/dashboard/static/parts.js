// Pieces that several views are made of.

import { el, keyed, meter, setData, setHidden, setMeter, setText } from "./dom.js";

/** A row of large numbers. `set(name, text, sub, tone)`. */
export function makeStats(names) {
  const element = el("dl", { class: "stats" });
  const rows = new Map();
  for (const [name, label] of Object.entries(names)) {
    const value = el("dd", {}, "–");
    const sub = el("dd", { class: "sub" });
    const row = el("div", { class: "stat", "data-stat": name }, el("dt", {}, label), value, sub);
    rows.set(name, { row, value, sub });
    element.append(row);
  }
  return {
    element,
    set(name, text, sub = "", tone = "") {
      const found = rows.get(name);
      setText(found.value, text);
      setText(found.sub, sub);
      setData(found.row, "tone", tone);
    },
  };
}

export function pill(text = "", tone = "") {
  return el("span", { class: "pill", "data-tone": tone }, text);
}

export function setPill(node, text, tone) {
  setText(node, text);
  setData(node, "tone", tone);
}

export function makeEmpty(title, ...words) {
  return el("div", { class: "empty" }, el("strong", {}, title), el("p", {}, ...words));
}

/** Buttons of which one is pressed. `options`: { value: label }. */
export function makeChips(label, options, start, onPick) {
  const buttons = new Map();
  const pick = (value) => {
    chips.value = value;
    for (const [each, button] of buttons) button.setAttribute("aria-pressed", String(each === value));
  };
  for (const [value, text] of Object.entries(options)) {
    buttons.set(value, el("button", { type: "button", onclick: () => { pick(value); onPick(value); } }, text));
  }
  const chips = { element: el("div", { class: "chips", role: "group", "aria-label": label }, ...buttons.values()), value: start, buttons };
  pick(start);
  return chips;
}

/** A table whose rows are changed in place. Columns: { label, text(item), right, name, share(item), tone(item) }. */
export function makeTable({ columns, keyOf, caption, empty }) {
  const body = el("tbody");
  const heads = columns.map((column) => el("th", { scope: "col", class: column.right ? "right" : undefined }, column.label));
  const table = el("table", { class: "cards" }, el("caption", { class: "sr" }, caption), el("thead", {}, el("tr", {}, ...heads)), body);
  const scroll = el("div", { class: "table" }, table);
  const element = el("div", {}, scroll, empty);
  const make = () => {
    const cells = columns.map((column) => {
      const cell = el("td", { class: [column.right && "right", column.name && "name"].filter(Boolean).join(" "), "data-label": column.label });
      if (column.share) cell.append((cell.meter = meter()));
      if (column.pill) cell.append((cell.pill = pill()));
      return cell;
    });
    return { element: el("tr", {}, ...cells), cells };
  };
  const update = (row, item) => columns.forEach((column, n) => {
    const cell = row.cells[n];
    if (column.share) setMeter(cell.meter, column.share(item), column.tone?.(item));
    else if (column.pill) setPill(cell.pill, ...column.pill(item));
    else setText(cell, column.text(item));
  });
  return {
    element,
    update(items) {
      setHidden(scroll, !items.length);
      if (empty) setHidden(empty, items.length > 0);
      keyed(body, items, keyOf, make, update);
    },
  };
}

/** A modal panel. `open(title)` shows it; it closes by Escape, its button and a click beside it. */
export function makePanel(onClose = () => {}) {
  const title = el("h2", { id: `panel-${Math.random().toString(36).slice(2)}` });
  const close = el("button", { class: "quiet", type: "button" }, "Close");
  const body = el("div", { class: "body" });
  const element = el("dialog", { "aria-labelledby": title.id }, el("header", {}, title, close), body);
  close.addEventListener("click", () => element.close());
  element.addEventListener("click", (event) => event.target === element && element.close());
  element.addEventListener("close", onClose);
  return {
    element,
    body,
    open(text) {
      setText(title, text);
      if (!element.open) element.showModal();
    },
  };
}

/** Names and values in two columns, changed in place: [[name, text]]. */
export function makeFacts() {
  const element = el("dl", { class: "facts" });
  const rows = new Map();
  return {
    element,
    update(facts) {
      for (const [name, text] of facts) {
        let row = rows.get(name);
        if (!row) {
          rows.set(name, (row = { dt: el("dt", {}, name), dd: el("dd") }));
          element.append(row.dt, row.dd);
        }
        setText(row.dd, text);
        setHidden(row.dt, text === "");
        setHidden(row.dd, text === "");
      }
    },
  };
}
