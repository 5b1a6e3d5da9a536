// Lines over time, as SVG: styled by the page's colours, read by pointer or arrow keys.

import { el, setText, svg } from "./dom.js";
import { clockTime, DASH } from "./format.js";

const HEIGHT = 150;
const TOP = 8;
const BOTTOM = 20;
const LEFT = 46;
const RIGHT = 4;
/** Points without a value that a line still goes across. */
const BRIDGE = 5;

/** `series`: [{ name, label, tone: 1..4 }]; `format` writes a value; `ceiling`: the axis ends there (shares). */
export function makeChart({ title, series, format, ceiling = null }) {
  const values = series.map(() => el("b", {}, DASH));
  const legend = el("ul", { class: "legend" });
  series.forEach((line, n) => legend.append(el("li", { class: `c${line.tone}` }, line.label, values[n])));
  const at = el("span", { class: "at" });
  const paths = series.map((line) => svg("path", { class: `c${line.tone}` }));
  const rules = [0, 1, 2].map(() => svg("line", { class: "rule" }));
  const ticks = [0, 1, 2].map(() => svg("text", { class: "tick", "text-anchor": "end" }));
  const times = [svg("text", { class: "tick" }), svg("text", { class: "tick", "text-anchor": "end" })];
  const cross = svg("line", { class: "cross", visibility: "hidden" });
  const none = svg("text", { class: "none" });
  const plot = svg("svg", { tabindex: "0", role: "img", "aria-label": title }, ...rules, ...ticks, ...times, ...paths.toReversed(), cross, none);
  const element = el("figure", { class: "card chart" }, el("header", {}, el("h2", {}, title), at), legend, plot);
  const chart = { element, width: 0, data: null, picked: null };

  const redraw = () => draw(chart, { title, series, format, ceiling, values, at, paths, rules, ticks, times, cross, none, plot });
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width && width !== chart.width) {
      chart.width = width;
      plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      redraw();
    }
  }).observe(plot);
  const pick = (back) => {
    chart.picked = back;
    redraw();
  };
  plot.addEventListener("pointermove", (event) => {
    if (!chart.data) return;
    const share = (event.offsetX - LEFT) / (chart.width - LEFT - RIGHT);
    const length = chart.data.length;
    pick(Math.min(length - 1, Math.max(0, Math.round((1 - share) * (length - 1)))));
  });
  plot.addEventListener("pointerleave", () => pick(null));
  plot.addEventListener("blur", () => pick(null));
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (event.key === "Escape") pick(null);
    if (!step || !chart.data) return;
    event.preventDefault();
    pick(Math.min(chart.data.length - 1, Math.max(0, (chart.picked ?? 0) + step)));
  });
  chart.update = (data, now) => {
    chart.data = data;
    chart.now = now;
    redraw();
  };
  return chart;
}

function draw(chart, parts) {
  if (!chart.data || !chart.width) return;
  const { series, format, paths } = parts;
  const columns = series.map((line) => chart.data.columns[line.name] ?? []);
  const length = chart.data.length;
  const top = parts.ceiling ?? niceTop(Math.max(0, ...columns.map((column) => column.reduce((a, b) => (b > a ? b : a), 0))));
  const inner = chart.width - LEFT - RIGHT;
  const x = (place, column) => LEFT + inner * (1 - (column.length - 1 - place) / (length - 1));
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(1, value / top));
  columns.forEach((column, n) => paths[n].setAttribute("d", line(column, x, y)));
  drawAxes(chart, parts, top, y);
  const isEmpty = columns.every((column) => column.every((value) => value === null));
  setText(parts.none, isEmpty ? "Nothing in this time" : "");
  parts.none.setAttribute("x", LEFT + inner / 2);
  parts.none.setAttribute("y", HEIGHT / 2);
  const back = chart.picked ?? 0;
  const shown = columns.map((column) => column[column.length - 1 - back] ?? null);
  // Without a picked point the legend tells the last value that there is, for a second may be without any.
  const told = chart.picked === null ? columns.map((column) => column.slice(-10).findLast((value) => value !== null) ?? null) : shown;
  told.forEach((value, n) => setText(parts.values[n], value === null ? DASH : format(value)));
  const wall = chart.now - back * chart.data.resolution;
  setText(parts.at, chart.picked === null ? "" : clockTime(wall));
  parts.cross.setAttribute("visibility", chart.picked === null ? "hidden" : "visible");
  if (chart.picked !== null) {
    const place = LEFT + inner * (1 - back / (length - 1));
    for (const [name, value] of [["x1", place], ["x2", place], ["y1", TOP], ["y2", HEIGHT - BOTTOM]]) parts.cross.setAttribute(name, value);
  }
  const words = series.map((one, n) => `${one.label} ${told[n] === null ? "unknown" : format(told[n])}`).join(", ");
  parts.plot.setAttribute("aria-label", `${parts.title}${chart.picked === null ? "" : `, ${clockTime(wall)}`}: ${words}`);
}

function drawAxes(chart, { rules, ticks, times, format }, top, y) {
  [0, 0.5, 1].forEach((share, n) => {
    const height = Math.round(y(top * share));
    for (const [name, value] of [["x1", LEFT], ["x2", chart.width - RIGHT], ["y1", height], ["y2", height]]) rules[n].setAttribute(name, value);
    ticks[n].setAttribute("x", LEFT - 8);
    ticks[n].setAttribute("y", height + 4);
    setText(ticks[n], share ? format(top * share) : "0");
  });
  const span = (chart.data.length - 1) * chart.data.resolution;
  times.forEach((text, n) => {
    text.setAttribute("x", n ? chart.width - RIGHT : LEFT);
    text.setAttribute("y", HEIGHT - 3);
  });
  setText(times[0], `${Math.round(span / 60)} min ago`);
  setText(times[1], "now");
}

function line(column, x, y) {
  let path = "";
  let gap = BRIDGE + 1;
  column.forEach((value, place) => {
    if (value === null) {
      gap++;
      return;
    }
    const point = `${x(place, column).toFixed(1)} ${y(value).toFixed(1)}`;
    // A point that stands alone is a line of no length, which round ends make a dot.
    path += gap > BRIDGE ? `M${point}h0` : `L${point}`;
    gap = 0;
  });
  return path;
}

/** The next of 1, 2, 2.5, 5, 10 … above a value. */
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 1.02) ?? 10 * power;
}
