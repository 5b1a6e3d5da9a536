// Who waits, for what, and what each tenant gets.

import { makeChart } from "../chart.js";
import { el } from "../dom.js";
import * as format from "../format.js";
import { makeEmpty, makeTable } from "../parts.js";

export const title = "Queue & tenants";

export function create() {
  const chart = makeChart({
    title: "Waiting and running", format: format.count,
    series: [{ name: "waiting", label: "waiting", tone: 3 }, { name: "running", label: "at replicas", tone: 1 }],
  });
  let most = 1;
  const queues = makeTable({
    caption: "Queues by model and class",
    keyOf: (queue) => JSON.stringify([queue.model, queue.priority]),
    empty: makeEmpty("Nobody waits", "Requests go to a replica as soon as they come."),
    columns: [
      { label: "Model", name: true, text: (queue) => queue.model },
      { label: "Class", text: (queue) => queue.priority },
      { label: "State", pill: (queue) => (queue.is_cold ? ["no replica", "bad"] : queue.requests ? ["waiting", "warn"] : ["flowing", "ok"]) },
      { label: "Waiting", right: true, text: (queue) => format.count(queue.requests) },
      { label: "Share", share: (queue) => queue.requests / most },
      { label: "Tokens", right: true, text: (queue) => format.count(queue.tokens) },
      { label: "Longest wait", right: true, text: (queue) => format.seconds(queue.longest) },
      { label: "Running, model", right: true, text: (queue) => format.count(queue.running) },
      { label: "Tenants that wait", text: (queue) => queue.tenants.map((tenant) => `${tenant.name} (${tenant.requests})`).join(", ") },
    ],
  });
  const sums = (caption, label, empty) => makeTable({
    caption, empty, keyOf: (row) => row.name,
    columns: [
      { label, name: true, text: (row) => row.name },
      { label: "Requests / s", right: true, text: (row) => format.count(row.requests_per_second) },
      { label: "Tokens / s", right: true, text: (row) => format.count(row.tokens_per_second) },
      { label: "Requests", right: true, text: (row) => format.count(row.requests) },
      { label: "Prompt tokens", right: true, text: (row) => format.count(row.prompt_tokens) },
      { label: "From cache", right: true, text: (row) => format.percent(row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null) },
      { label: "Output tokens", right: true, text: (row) => format.count(row.output_tokens) },
      { label: "Turned away", right: true, text: (row) => format.count(row.refused) },
      { label: "Failed", right: true, text: (row) => format.count(row.errors) },
    ],
  });
  const tenants = sums("Tenants", "Tenant", makeEmpty("No request yet", "Tenants appear here with their first request."));
  const models = sums("Models", "Model", makeEmpty("No request yet", "Models appear here with their first request."));
  const card = (heading, aside, content) => el("section", { class: "card" }, el("header", {}, el("h2", {}, heading), el("span", { class: "aside" }, aside)), content);
  return {
    element: el("div", {},
      el("div", { class: "head" }, el("h1", {}, title)),
      el("div", { class: "stack" }, chart.element,
        card("Queues", "now", queues.element),
        card("Tenants", "since the gateway's start; rates over a minute", tenants.element),
        card("Models", "since the gateway's start; rates over a minute", models.element))),
    update({ snapshot, fine }) {
      if (!snapshot) return;
      chart.update(fine, snapshot.gateway.time);
      most = Math.max(1, ...snapshot.queues.map((queue) => queue.requests));
      queues.update(snapshot.queues.filter((queue) => queue.requests || queue.running).sort((a, b) => b.requests - a.requests));
      tenants.update([...snapshot.tenants].sort((a, b) => b.tokens_per_second - a.tokens_per_second || b.requests - a.requests));
      models.update([...snapshot.models].sort((a, b) => b.tokens_per_second - a.tokens_per_second || b.requests - a.requests));
    },
  };
}
