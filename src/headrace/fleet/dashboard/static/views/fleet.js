// Every replica as a tile: state, load, KV cache, prefix hits. One of them in full.

import { el, keyed, meter, setData, setHidden, setMeter, setText } from "../dom.js";
import * as format from "../format.js";
import { makeChips, makeEmpty, makeFacts, makePanel, pill, setPill } from "../parts.js";

export const title = "Fleet";

const TONES = { ready: "ok", draining: "warn", unknown: "", parked: "", loading: "warn", unready: "bad", ejected: "bad" };
/** More tiles than this are drawn small. */
const CROWD = 40;
const ORDERS = {
  name: { label: "by name", by: (a, b) => a.id.localeCompare(b.id, "en", { numeric: true }) },
  load: { label: "busiest first", by: (a, b) => load(b) - load(a) },
  kv: { label: "fullest KV first", by: (a, b) => (b.kv_usage ?? -1) - (a.kv_usage ?? -1) },
  state: { label: "troubled first", by: (a, b) => (a.standing === "ready") - (b.standing === "ready") },
};
const load = (replica) => replica.num_requests / Math.max(1, replica.max_requests);
/** Its own word says more than ours where it is parked or loading. */
const stateOf = (replica) => (["parked", "loading", "empty"].includes(replica.state) ? replica.state : replica.standing);
const toneOf = (replica) => TONES[stateOf(replica)] ?? "";

export function create({ store }) {
  const again = () => view.update(store);
  const search = el("input", { type: "search", placeholder: "Name, model, label", "aria-label": "Search replicas", oninput: again });
  const chips = makeChips("State", { all: "All", ready: "Ready", other: "Not ready" }, "all", again);
  const order = el("select", { class: "small", "aria-label": "Order", onchange: again },
    ...Object.entries(ORDERS).map(([value, { label }]) => el("option", { value }, label)));
  const tiles = el("ul", { class: "tiles", "aria-label": "Replicas" });
  const empty = makeEmpty("No replica yet", "Name replicas in the fleet's file, or add one with ", el("code", {}, "headrace fleet add URL"), ".");
  const nothing = makeEmpty("None fits", "No replica has this name, model or state.");
  const facts = makeFacts();
  let picked = null;
  const panel = makePanel(() => { picked = null; });
  panel.body.append(facts.element);
  const show = (replica) => {
    picked = replica.id;
    panel.open(replica.id);
    facts.update(factsOf(replica));
  };
  const view = {
    element: el("div", {},
      el("div", { class: "head" }, el("h1", {}, title), el("div", { class: "tools" }, search, chips.element, order)),
      tiles, empty, nothing, panel.element),
    update({ snapshot }) {
      if (!snapshot) return;
      const all = snapshot.replicas;
      const ready = all.filter((replica) => replica.standing === "ready").length;
      setText(chips.buttons.get("all"), `All ${all.length}`);
      setText(chips.buttons.get("ready"), `Ready ${ready}`);
      setText(chips.buttons.get("other"), `Not ready ${all.length - ready}`);
      const wanted = search.value.trim().toLowerCase();
      const found = all.filter((replica) => fits(replica, wanted, chips.value)).sort(ORDERS[order.value].by);
      // A crowd is a map: what each is called, its state and its bars; the rest is a click away.
      setData(tiles, "dense", String(found.length > CROWD));
      setHidden(tiles, !found.length);
      setHidden(empty, all.length > 0);
      setHidden(nothing, found.length > 0 || !all.length);
      keyed(tiles, found, (replica) => replica.id, (replica) => makeTile(replica, show), updateTile);
      const open = picked !== null && all.find((replica) => replica.id === picked);
      if (open) facts.update(factsOf(open));
    },
  };
  return view;
}

function fits(replica, wanted, state) {
  if (state !== "all" && (state === "ready") !== (replica.standing === "ready")) return false;
  const words = [replica.id, replica.url, replica.standing, replica.state ?? "", ...replica.models, ...Object.values(replica.labels)];
  return !wanted || words.some((word) => word.toLowerCase().includes(wanted));
}

function makeTile(first, show) {
  const parts = { name: el("b"), state: pill(), model: el("span", { class: "model" }), foot: el("span", { class: "foot" }), replica: first };
  const gauge = (name, label) => {
    parts[name] = { bar: meter(), value: el("span") };
    return el("span", { class: "gauge" }, el("span", {}, label), parts[name].bar, parts[name].value);
  };
  const tile = el("button", { class: "tile", type: "button", onclick: () => show(parts.replica) },
    el("span", { class: "top" }, parts.name, parts.state), parts.model,
    gauge("load", "Load"), gauge("kv", "KV"), gauge("hits", "Prefix"), parts.foot);
  parts.tile = tile;
  parts.element = el("li", { "data-replica": first.id }, tile);
  return parts;
}

function updateTile(parts, replica) {
  parts.replica = replica;
  const tone = toneOf(replica);
  setText(parts.name, replica.id);
  setPill(parts.state, stateOf(replica), tone);
  setData(parts.tile, "tone", tone === "ok" ? "" : tone);
  setText(parts.model, replica.models.join(", ") || "no model told yet");
  const share = load(replica);
  setMeter(parts.load.bar, share, share >= 1 ? "bad" : share > 0.8 ? "warn" : "");
  setText(parts.load.value, `${replica.num_requests} / ${replica.max_requests}`);
  setMeter(parts.kv.bar, replica.kv_usage, replica.kv_usage > 0.95 ? "bad" : replica.kv_usage > 0.85 ? "warn" : "");
  setText(parts.kv.value, format.percent(replica.kv_usage));
  setMeter(parts.hits.bar, replica.prefix_hit_rate, "soft");
  setText(parts.hits.value, format.percent(replica.prefix_hit_rate));
  setText(parts.foot, replica.reason || `TTFT ${format.seconds(replica.ttft)} · TPOT ${format.seconds(replica.tpot)}`);
}

function factsOf(replica) {
  return [
    ["State", stateOf(replica)],
    ["Why", replica.reason],
    ["Models", replica.models.join(", ") || format.DASH],
    ["Address", replica.url],
    ["Speaks", replica.dialect],
    ["Role", replica.role],
    ["Version", replica.version],
    ["Labels", Object.entries(replica.labels).map(([name, value]) => `${name}=${value}`).join(", ")],
    ["Circuit", replica.circuit],
    ["Requests of this gateway", `${replica.num_requests} of at most ${replica.max_requests}`],
    ["Running, waiting there", `${format.count(replica.num_running)}, ${format.count(replica.num_waiting)}`],
    ["Prompt tokens ahead", format.count(replica.prefill_tokens)],
    ["Output tokens ahead", format.count(replica.decode_tokens)],
    ["KV cache in use", format.percent(replica.kv_usage)],
    ["Prefix hits", format.percent(replica.prefix_hit_rate)],
    ["TTFT, TPOT", `${format.seconds(replica.ttft)}, ${format.seconds(replica.tpot)}`],
    ["Longest context", replica.max_context === null ? "" : `${format.count(replica.max_context)} tokens`],
    ["Up for", replica.uptime === null ? "" : format.seconds(replica.uptime)],
  ];
}
