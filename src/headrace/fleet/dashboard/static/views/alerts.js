// Objectives, and those of them that are, or were, at risk.

import { el, keyed, setHidden, setText } from "../dom.js";
import * as format from "../format.js";
import { makeEmpty, makeTable, pill, setPill } from "../parts.js";

export const title = "Alerts";

const TONES = { critical: "bad", warning: "warn" };
const WORDS = { critical: "burning fast", warning: "burning" };

export function create() {
  const list = el("ol", { class: "log", "aria-label": "Alerts" });
  const calm = makeEmpty("No alert", "No objective is at risk, and none was since the gateway's start.");
  const objectives = makeTable({
    caption: "Objectives",
    keyOf: (one) => JSON.stringify([one.slo, one.model]),
    empty: makeEmpty("No objective", "Say under ", el("code", {}, "slos"), " in the fleet's file what is good enough; then its error budget is watched here."),
    columns: [
      { label: "Objective", name: true, text: (one) => one.slo },
      { label: "Model", text: (one) => one.model },
      { label: "State", pill: (one) => (one.severity ? [WORDS[one.severity], TONES[one.severity]] : one.budget_left <= 0 ? ["budget spent", "bad"] : ["kept", "ok"]) },
      { label: "Promise", text: promise },
      { label: "Last minute", right: true, text: (one) => share(one.recent) },
      { label: "Whole window", right: true, text: (one) => share(one.attainment) },
      { label: "Budget left", right: true, text: (one) => format.percent(Math.max(0, one.budget_left)) },
      { label: "Budget", share: (one) => one.budget_left, tone: (one) => (one.budget_left < 0.1 ? "bad" : one.budget_left < 0.5 ? "warn" : "") },
    ],
  });
  return {
    element: el("div", {}, el("div", { class: "head" }, el("h1", {}, title)),
      el("div", { class: "stack" },
        el("section", { class: "card" }, list, calm),
        el("section", { class: "card" }, el("header", {}, el("h2", {}, "Objectives")), objectives.element))),
    update({ snapshot }) {
      if (!snapshot) return;
      const { alerts } = snapshot;
      setHidden(list, !alerts.length);
      setHidden(calm, alerts.length > 0);
      keyed(list, alerts, (alert) => JSON.stringify([alert.name, alert.model, alert.severity, alert.is_firing || alert.since]), makeAlert, (row, alert) => updateAlert(row, alert, snapshot.gateway.time));
      objectives.update(snapshot.objectives);
    },
  };
}

const share = (value) => (value === null ? format.DASH : `${(value * 100).toFixed(2)}%`);

function promise(one) {
  const what = one.measure === "availability" ? "answered" : `${one.measure.toUpperCase()} within ${format.seconds(one.threshold)}`;
  return `${Number((one.target * 100).toFixed(4))}% ${what}`;
}

function makeAlert() {
  const row = { time: el("time"), name: el("span"), state: pill(), summary: el("p", { class: "why" }), budget: el("p", { class: "why num" }) };
  row.element = el("li", {}, row.time, el("div", {}, el("p", { class: "what" }, row.state, row.name), row.summary, row.budget));
  return row;
}

function updateAlert(row, alert, now) {
  setText(row.time, format.ago(now - alert.since));
  setText(row.name, `${alert.name} · ${alert.model}`);
  setPill(row.state, alert.is_firing ? alert.severity : "over", alert.is_firing ? TONES[alert.severity] ?? "" : "ok");
  setText(row.summary, alert.summary);
  setText(row.budget, `${format.percent(Math.max(0, alert.budget_left))} of the error budget is left.`);
}
