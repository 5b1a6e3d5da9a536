// The first look: is it well, and if not, since when.

import { makeChart } from "../chart.js";
import { el } from "../dom.js";
import * as format from "../format.js";
import { makeChips, makeStats } from "../parts.js";
import { latest, mean } from "../store.js";

export const title = "Overview";

const perSecond = (value) => format.count(value);
const TIMES = [
  { suffix: "p50", label: "p50", tone: 2 },
  { suffix: "p95", label: "p95", tone: 1 },
  { suffix: "p99", label: "p99", tone: 3 },
];
const timed = (name) => TIMES.map(({ suffix, ...rest }) => ({ name: `${name}_${suffix}`, ...rest }));

export function create({ store }) {
  const stats = makeStats({
    replicas: "Replicas ready", requests: "Requests / s", output: "Tokens out / s", ttft: "TTFT p95",
    itl: "ITL p95", waiting: "Waiting", errors: "Failed", cost: "Cost / h",
  });
  const charts = [
    makeChart({ title: "Time to first token", series: timed("ttft"), format: format.seconds }),
    makeChart({ title: "Time between tokens", series: timed("itl"), format: format.seconds }),
    makeChart({ title: "Tokens per second", series: [{ name: "output_tokens", label: "output", tone: 1 }, { name: "prompt_tokens", label: "prompt", tone: 2 }], format: perSecond }),
    makeChart({ title: "Requests per second", series: [{ name: "requests", label: "ended", tone: 1 }, { name: "errors", label: "failed", tone: 4 }], format: perSecond }),
    makeChart({ title: "Requests at once", series: [{ name: "running", label: "at replicas", tone: 1 }, { name: "waiting", label: "waiting", tone: 3 }], format: format.count }),
    makeChart({ title: "KV cache and prefix hits", series: [{ name: "kv_usage", label: "KV in use", tone: 1 }, { name: "prefix_hits", label: "prefix hits", tone: 2 }], format: format.percent, ceiling: 1 }),
  ];
  const range = makeChips("Time shown", { fine: "5 min", coarse: "1 h" }, "fine", () => view.update(store));
  const element = el("div", {},
    el("div", { class: "head" }, el("h1", {}, title), el("div", { class: "tools" }, range.element)),
    el("div", { class: "stack" }, stats.element, el("div", { class: "grid" }, ...charts.map((chart) => chart.element))));
  const view = {
    element,
    update(known) {
      if (!known.snapshot) return;
      tellStats(stats, known);
      const data = known[range.value];
      for (const chart of charts) chart.update(data, known.snapshot.gateway.time);
    },
  };
  return view;
}

function tellStats(stats, { fine, snapshot }) {
  const { replicas } = snapshot;
  const ready = replicas.filter((replica) => replica.standing === "ready").length;
  const minute = (name) => mean(fine.last(name, 60));
  const recent = (name) => latest(fine.last(name, 60));
  stats.set("replicas", `${ready} / ${replicas.length}`, wordsOf(ready, replicas.length), ready === replicas.length ? "" : ready === 0 ? "bad" : "warn");
  stats.set("requests", format.count(mean(fine.last("requests", 10))), `1 min: ${format.count(minute("requests"))}`);
  stats.set("output", format.count(mean(fine.last("output_tokens", 10))), `in: ${format.count(minute("prompt_tokens"))}`);
  stats.set("ttft", format.seconds(recent("ttft_p95")), `p50 ${format.seconds(recent("ttft_p50"))}`);
  stats.set("itl", format.seconds(recent("itl_p95")), `p50 ${format.seconds(recent("itl_p50"))}`);
  const waiting = recent("waiting");
  const longest = Math.max(0, ...snapshot.queues.map((queue) => queue.longest ?? 0));
  stats.set("waiting", format.count(waiting), waiting ? `longest ${format.seconds(longest)}` : `${format.count(recent("running"))} running`);
  const total = minute("requests");
  const failed = total ? minute("errors") / total : total === null ? null : 0;
  stats.set("errors", format.percent(failed), "last minute", failed > 0.01 ? "bad" : "");
  const spent = minute("cost");
  const fixed = snapshot.pools.reduce((sum, pool) => sum + pool.ready * pool.hourly_cost, 0);
  stats.set("cost", format.money(fixed || (spent === null ? null : spent * 3600)), fixed ? "of replicas" : "charged");
}

function wordsOf(ready, total) {
  if (total === 0) return "none yet";
  return ready === total ? "all of them" : `${total - ready} not ready`;
}
