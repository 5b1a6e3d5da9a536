// Pools as they are, and every decision with its reason.

import { makeChart } from "../chart.js";
import { el, keyed, meter, setHidden, setMeter, setText } from "../dom.js";
import * as format from "../format.js";
import { makeEmpty, pill, setPill } from "../parts.js";

export const title = "Scaling";

export function create() {
  const chart = makeChart({ title: "Replicas", format: format.count, series: [{ name: "ready", label: "ready", tone: 1 }, { name: "replicas", label: "in the list", tone: 2 }] });
  const pools = el("ul", { class: "pools", "aria-label": "Pools" });
  const noPools = makeEmpty("No pool", "This gateway's replicas are started by others. Pools in the fleet's file, run with ", el("code", {}, "headrace up"), ", grow and shrink by themselves.");
  const log = el("ol", { class: "log", "aria-label": "Decisions, newest first" });
  const noLog = makeEmpty("No decision yet", "Each change of a pool will stand here with the figures that led to it.");
  return {
    element: el("div", {},
      el("div", { class: "head" }, el("h1", {}, title)),
      el("div", { class: "stack" }, pools, noPools, chart.element,
        el("section", { class: "card" }, el("header", {}, el("h2", {}, "Decisions"), el("span", { class: "aside" }, "newest first")), log, noLog))),
    update({ snapshot, coarse, fine }) {
      if (!snapshot) return;
      chart.update(coarse.end > 3 ? coarse : fine, snapshot.gateway.time);
      setHidden(pools, !snapshot.pools.length);
      setHidden(noPools, snapshot.pools.length > 0);
      keyed(pools, snapshot.pools, (pool) => pool.name, makePool, updatePool);
      setHidden(log, !snapshot.decisions.length);
      setHidden(noLog, snapshot.decisions.length > 0);
      keyed(log, snapshot.decisions, (one) => JSON.stringify([one.at, one.pool, one.kind, one.policy, one.reason]), makeDecision, updateDecision);
    },
  };
}

function makePool() {
  const row = { name: el("h2"), size: el("p", { class: "size" }), bar: meter(), sub: el("p", { class: "muted" }), state: pill() };
  row.element = el("li", { class: "card pool" }, el("header", { class: "top" }, row.name, el("span", { class: "aside" }, row.state)), row.size, row.bar, row.sub);
  return row;
}

function updatePool(row, pool) {
  setText(row.name, pool.name);
  const desired = pool.desired ?? pool.ready + pool.pending;
  const moves = desired > pool.ready ? ["growing", "warn"] : desired < pool.ready ? ["shrinking", "warn"] : desired === 0 ? ["asleep", ""] : ["steady", "ok"];
  setPill(row.state, ...moves);
  setText(row.size, desired === pool.ready ? `${pool.ready}` : `${pool.ready} → ${desired}`);
  setMeter(row.bar, pool.ready / Math.max(1, pool.max_replicas));
  const words = [pool.model, pool.driver, `${pool.min_replicas} to ${pool.max_replicas}`];
  if (pool.pending) words.push(`${pool.pending} starting`);
  if (pool.warm) words.push(`${pool.warm} warm`);
  if (pool.hourly_cost) words.push(`${format.money(pool.hourly_cost * pool.ready)} an hour`);
  setText(row.sub, words.join(" · "));
}

function changeOf(one) {
  if (one.kind === "fault") return ["fault", "bad"];
  if (one.kind === "action") return ["done", ""];
  if (one.desired === one.current) return [`stays at ${one.current}`, ""];
  return [`${one.current} → ${one.desired}`, one.desired > one.current ? "ok" : ""];
}

function makeDecision() {
  const row = { time: el("time"), pool: el("span"), change: pill(), policy: el("span", { class: "muted" }), why: el("p", { class: "why" }), limit: el("p", { class: "why" }) };
  row.element = el("li", {}, row.time, el("div", {}, el("p", { class: "what" }, row.pool, row.change, row.policy), row.why, row.limit));
  return row;
}

function updateDecision(row, one) {
  setText(row.time, format.clockTime(one.at));
  setText(row.pool, one.pool);
  setPill(row.change, ...changeOf(one));
  setText(row.policy, `${one.policy}${one.is_advisory ? ", advice only" : ""}`);
  setHidden(row.policy, !one.policy);
  setText(row.why, one.reason);
  setText(row.limit, one.limited_by ? `Held back by ${one.limited_by}.` : "");
  setHidden(row.limit, !one.limited_by);
}
