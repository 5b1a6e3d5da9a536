// What it costs, who pays, and what the prefix cache saves.

import { makeChart } from "../chart.js";
import { el, setHidden } from "../dom.js";
import * as format from "../format.js";
import { makeEmpty, makeStats, makeTable } from "../parts.js";
import { mean } from "../store.js";

export const title = "Cost";

const total = (rows, name) => rows.reduce((sum, row) => sum + row[name], 0);

export function create() {
  const stats = makeStats({ spent: "Charged", rate: "Charged / h", thousand: "Per 1,000 tokens", saved: "Saved by cached prompts", fleet: "Replicas / h" });
  const chart = makeChart({ title: "Charged per hour", series: [{ name: "hourly", label: "at this pace", tone: 1 }], format: format.money });
  let most = 1;
  const table = (caption, label) => makeTable({
    caption, keyOf: (row) => row.name,
    columns: [
      { label, name: true, text: (row) => row.name },
      { label: "Charged", right: true, text: (row) => format.money(row.cost) },
      { label: "Share", share: (row) => row.cost / most },
      { label: "Per 1,000 tokens", right: true, text: (row) => format.money(perThousand([row])) },
      { label: "Saved", right: true, text: (row) => format.money(row.saved) },
      { label: "Tokens", right: true, text: (row) => format.count(row.prompt_tokens + row.output_tokens) },
      { label: "Requests", right: true, text: (row) => format.count(row.requests) },
    ],
  });
  const tenants = table("Cost by tenant", "Tenant");
  const models = table("Cost by model", "Model");
  const full = el("div", { class: "stack" }, stats.element, chart.element,
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "By tenant")), tenants.element),
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "By model")), models.element));
  const empty = makeEmpty("No price", "Replicas cost nothing until they have a ", el("code", {}, "price"), " (money per million tokens) or their pool an ", el("code", {}, "hourly_cost"), ". The currency is yours.");
  return {
    element: el("div", {}, el("div", { class: "head" }, el("h1", {}, title), el("p", { class: "muted" }, "since the gateway's start")), full, empty),
    update({ snapshot, coarse, fine }) {
      if (!snapshot) return;
      const { tenants: rows, pools } = snapshot;
      const spent = total(rows, "cost");
      const fleet = pools.reduce((sum, pool) => sum + pool.ready * pool.hourly_cost, 0);
      setHidden(full, !spent && !fleet);
      setHidden(empty, spent > 0 || fleet > 0);
      const pace = mean(fine.last("cost", 60));
      stats.set("spent", format.money(spent), `in ${format.seconds(snapshot.gateway.uptime)}`);
      stats.set("rate", format.money(pace === null ? null : pace * 3600), "by the last minute");
      stats.set("thousand", format.money(perThousand(rows)), "prompt and output");
      const saved = total(rows, "saved");
      stats.set("saved", format.money(saved), spent + saved ? `${format.percent(saved / (spent + saved))} of the full price` : "");
      stats.set("fleet", fleet ? format.money(fleet) : format.DASH, fleet ? "of all pools" : "no hourly cost is set");
      const data = coarse.end > 3 ? coarse : fine;
      const hourly = (data.columns.cost ?? []).map((value) => (value === null ? null : value * 3600));
      chart.update({ ...data, columns: { hourly } }, snapshot.gateway.time);
      const byCost = (a, b) => b.cost - a.cost;
      most = Math.max(1e-12, ...rows.map((row) => row.cost));
      tenants.update([...rows].sort(byCost));
      most = Math.max(1e-12, ...snapshot.models.map((row) => row.cost));
      models.update([...snapshot.models].sort(byCost));
    },
  };
}

function perThousand(rows) {
  const tokens = total(rows, "prompt_tokens") + total(rows, "output_tokens");
  return tokens ? (total(rows, "cost") / tokens) * 1000 : null;
}
