// The last requests: their way and their times, never their text.

import { el, keyed, setHidden, setText } from "../dom.js";
import * as format from "../format.js";
import { makeChips, makeEmpty, makeFacts, makePanel, pill, setPill } from "../parts.js";

export const title = "Requests";

const SHOWN = 100;
const LABELS = ["Request", "Ended", "Status", "Tenant", "Model", "Replica", "Queue", "TTFT", "ITL", "Total", "Tokens"];
const RIGHT = new Set(["Queue", "TTFT", "ITL", "Total", "Tokens"]);
const WORDS = { ok: "ok", left: "client left", broken: "broke off" };
const FAILED = new Set(["broken", "failed", "overloaded", "refused", "limited"]);
const TONES = { ok: "ok", left: "warn", limited: "warn", refused: "warn" };
const isFailed = (request) => FAILED.has(request.result);
const toneOf = (request) => TONES[request.result] ?? "bad";
const replicaOf = (request) => (request.is_cached ? "response cache" : request.tries.at(-1)?.replica ?? "");

export function create({ store }) {
  const again = () => view.update(store, true);
  const search = el("input", { type: "search", placeholder: "Id, tenant, replica …", "aria-label": "Search requests", oninput: again });
  const chips = makeChips("Which", { all: "All", failed: "Failed", retried: "Retried", slow: "Slowest" }, "all", again);
  const hold = el("button", { type: "button", "aria-pressed": "false" }, "Pause");
  let frozen = null;
  hold.addEventListener("click", () => {
    frozen = frozen ? null : [...store.requests];
    hold.setAttribute("aria-pressed", String(frozen !== null));
    setText(hold, frozen ? "Go on" : "Pause");
    again();
  });
  const body = el("tbody");
  const table = el("div", { class: "card table" }, el("table", { class: "cards requests" },
    el("caption", { class: "sr" }, "Requests that ended, newest first"),
    el("thead", {}, el("tr", {}, ...LABELS.map((label) => el("th", { scope: "col", class: RIGHT.has(label) ? "right" : undefined }, label)))), body));
  const empty = makeEmpty("No request yet", "Each request stands here when it has ended: its way, its times and its cost. Texts are never kept.");
  const nothing = makeEmpty("None fits", "Of the requests that are kept, none is like this.");
  const panel = makePanel();
  const inside = makeInspector();
  panel.body.append(...inside.elements);
  const show = (request) => {
    inside.update(request);
    panel.open(request.request_id);
  };
  const view = {
    element: el("div", {},
      el("div", { class: "head" }, el("h1", {}, title), el("div", { class: "tools" }, search, chips.element, hold)),
      table, empty, nothing, panel.element),
    update({ requests }) {
      const all = frozen ?? requests;
      const wanted = search.value.trim().toLowerCase();
      let found = all.filter((request) => fits(request, wanted, chips.value)).reverse();
      if (chips.value === "slow") found.sort((a, b) => b.latency - a.latency);
      found = found.slice(0, SHOWN);
      setHidden(table, !found.length);
      setHidden(empty, all.length > 0);
      setHidden(nothing, found.length > 0 || !all.length);
      keyed(body, found, (request) => request.number, (request) => makeRow(request, show), () => {});
    },
  };
  return view;
}

function fits(request, wanted, kind) {
  if (kind === "failed" && !isFailed(request)) return false;
  if (kind === "retried" && request.tries.length < 2) return false;
  const words = [request.request_id, request.tenant, request.key, request.model, request.error, ...request.tries.map((one) => one.replica)];
  return !wanted || words.some((word) => word.toLowerCase().includes(wanted));
}

/** What has ended does not change: a row is written once. */
function makeRow(request, show) {
  const state = pill();
  setPill(state, wordOf(request), toneOf(request));
  const button = el("button", { type: "button" }, request.request_id);
  const texts = [
    null, format.clockTime(request.time + request.latency), null, request.tenant, request.model, replicaOf(request),
    format.seconds(request.queued), format.seconds(request.ttft), format.seconds(request.itl), format.seconds(request.latency),
    `${format.count(request.prompt_tokens)} + ${format.count(request.output_tokens)}`,
  ];
  const cells = texts.map((text, n) => el("td", { class: n === 0 ? "name" : RIGHT.has(LABELS[n]) ? "right" : undefined, "data-label": LABELS[n] }, text ?? (n === 0 ? button : state)));
  return { element: el("tr", { onclick: () => show(request) }, ...cells) };
}

const wordOf = (request) => `${request.status} ${WORDS[request.result] ?? request.error.replaceAll("_", " ")}`.trim();

function makeInspector() {
  const facts = makeFacts();
  const lane = el("ol", { class: "lane", "aria-label": "Times" });
  const tries = el("ol", { class: "log" });
  const heading = el("h3", {}, "Replicas that were asked");
  return {
    elements: [lane, el("section", {}, heading, tries), facts.element],
    update(request) {
      keyed(lane, spans(request), (span) => span.id, () => makeSpan(), (row, span) => updateSpan(row, span, request.latency));
      setHidden(heading, !request.tries.length);
      const numbered = request.tries.map((one, n) => ({ ...one, key: `${request.number}/${n}` }));
      keyed(tries, numbered, (one) => one.key, makeTry, () => {});
      facts.update(factsOf(request));
    },
  };
}

/** From its arrival on: waiting, each replica, and of the last one what came after the first token. */
function spans(request) {
  const found = [];
  if (request.queued !== null) {
    const first = request.tries[0]?.at ?? request.latency;
    found.push({ id: "queue", name: "Queue", from: Math.max(0, first - request.queued), length: request.queued, kind: "wait" });
  }
  request.tries.forEach((one, n) => {
    const head = one.ttft ?? (one.outcome === "ok" && !request.is_stream ? one.seconds : null);
    const isBad = !["ok", "cancelled"].includes(one.outcome);
    if (head === null || isBad) found.push({ id: `try ${n}`, name: one.replica, from: one.at, length: one.seconds, kind: isBad ? "fail" : "soft" });
    else {
      found.push({ id: `head ${n}`, name: request.is_stream ? "First token" : "Answer", from: one.at, length: head, kind: "" });
      if (request.is_stream) found.push({ id: `rest ${n}`, name: "Tokens", from: one.at + head, length: Math.max(0, one.seconds - head), kind: "soft" });
    }
  });
  return found;
}

function makeSpan() {
  const row = { name: el("span"), bar: el("i"), length: el("span", { class: "right" }) };
  row.element = el("li", {}, row.name, el("span", { class: "track" }, row.bar), row.length);
  return row;
}

function updateSpan(row, span, total) {
  setText(row.name, span.name);
  setText(row.length, format.seconds(span.length));
  row.bar.className = span.kind;
  row.bar.style.left = `${Math.min(99, (100 * span.from) / Math.max(total, 1e-9))}%`;
  row.bar.style.width = `${Math.min(100, (100 * span.length) / Math.max(total, 1e-9))}%`;
}

function makeTry(one) {
  const isGood = one.outcome === "ok";
  const element = el("li", {},
    el("time", {}, `+${format.seconds(one.at)}`),
    el("div", {},
      el("p", { class: "what" }, el("span", {}, one.replica), pill(one.outcome.replaceAll("_", " "), isGood ? "ok" : one.outcome === "cancelled" ? "warn" : "bad")),
      el("p", { class: "why" }, `${one.policy}: ${one.reason}`)));
  return { element };
}

function factsOf(request) {
  return [
    ["Status", wordOf(request)],
    ["Came", `${format.clockTime(request.time)}, ended ${format.seconds(request.latency)} later`],
    ["Endpoint", `${request.endpoint}${request.is_stream ? ", streamed" : ""}`],
    ["Model", request.model],
    ["Answered by", request.answered_by],
    ["Tenant", request.tenant],
    ["Key, class", `${request.key}, ${request.priority}`],
    ["Prompt tokens", `${format.count(request.prompt_tokens)}, ${format.count(request.cached_tokens)} of them cached`],
    ["Output tokens", format.count(request.output_tokens)],
    ["TTFT, ITL", `${format.seconds(request.ttft)}, ${format.seconds(request.itl)}`],
    ["Cost", format.money(request.cost / 1e9)],
    ["Saved by the cache", request.saved ? format.money(request.saved / 1e9) : ""],
  ];
}
