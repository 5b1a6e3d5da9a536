// The frame: who signs in, which view is shown, and a question to the gateway every second.

import { CallError, getDashboard, keys } from "./api.js";
import { el, setData, setHidden, setText } from "./dom.js";
import { makeStore } from "./store.js";
import * as alerts from "./views/alerts.js";
import * as cost from "./views/cost.js";
import * as fleet from "./views/fleet.js";
import * as overview from "./views/overview.js";
import * as playground from "./views/playground.js";
import * as queue from "./views/queue.js";
import * as requests from "./views/requests.js";
import * as scaling from "./views/scaling.js";

const PERIOD = 1000;
const LONGEST_PAUSE = 15_000;
const VIEWS = { overview, fleet, queue, scaling, alerts, cost, requests, playground };
/** Views that need no operator's key. */
const OPEN = new Set(["playground"]);

const main = document.getElementById("main");
const link = document.getElementById("link");
const forget = document.getElementById("forget");
const words = el("span");
const details = el("span", { class: "wide" });
const store = makeStore();
const made = new Map();
const links = new Map();
let shown = "";
let timer = 0;
let failures = 0;
let isAsking = false;
let refusal = null;

link.append(el("span", {}, words, details));
for (const [name, view] of Object.entries(VIEWS)) {
  const badge = el("span", { class: "count", hidden: true });
  const anchor = el("a", { href: `#${name}` }, view.title, badge);
  links.set(name, { anchor, badge });
  document.getElementById("nav").append(anchor);
}

function route() {
  const name = location.hash.slice(1);
  if (name === "main") return;
  shown = name in VIEWS ? name : "overview";
  for (const [each, { anchor }] of links) {
    if (each === shown) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  links.get(shown).anchor.scrollIntoView({ block: "nearest", inline: "nearest" });
  document.title = `${VIEWS[shown].title} · headrace`;
  render();
}

/** Put the right thing in the middle: the view, or the question for a key. */
function render() {
  const isLocked = !OPEN.has(shown) && (refusal !== null || !keys.operator.get());
  const key = isLocked ? "signin" : shown;
  if (!made.has(key)) made.set(key, isLocked ? signIn() : VIEWS[shown].create({ store }));
  const view = made.get(key);
  if (main.firstElementChild !== view.element) {
    main.replaceChildren(view.element);
    window.scrollTo(0, 0);
    if (isLocked) view.element.querySelector("input").focus();
  }
  setHidden(forget, !keys.operator.get());
  view.update(store, refusal);
}

function signIn() {
  const input = el("input", { type: "password", id: "operator", autocomplete: "off", spellcheck: "false", required: true });
  const fault = el("p", { class: "notice bad", role: "alert", hidden: true });
  const submit = el("button", { class: "primary", type: "submit" }, "Show the fleet");
  const form = el("form", { class: "card", onsubmit: (event) => {
    event.preventDefault();
    refusal = null;
    keys.operator.set(input.value.trim());
    input.value = "";
    setText(submit, "Asking …");
    ask();
  } },
  el("h1", {}, "Sign in"),
  el("p", {}, "The fleet is shown to operators. Their keys stand in the fleet's file, under ", el("code", {}, "gateway.admin_keys"), "."),
  fault,
  el("label", { class: "field" }, "Operator key", input),
  submit,
  el("p", {}, "The key stays in this tab and is forgotten with it."));
  return {
    element: el("div", { class: "signin" }, form),
    update(_store, why) {
      setText(submit, "Show the fleet");
      setText(fault, why ?? "");
      setHidden(fault, why === null);
    },
  };
}

function schedule(pause) {
  clearTimeout(timer);
  timer = setTimeout(ask, pause);
}

async function ask() {
  clearTimeout(timer);
  // Nobody looks: the gateway is left alone. Without a key there is nothing to ask.
  if (isAsking || document.hidden || !keys.operator.get()) return;
  isAsking = true;
  const key = keys.operator.get();
  try {
    const snapshot = await getDashboard(store.look());
    if (key !== keys.operator.get()) return;
    store.take(snapshot);
    failures = 0;
    refusal = null;
    const { version, is_draining } = snapshot.gateway;
    tell("live", is_draining ? "Shutting down" : "Live", ` · gateway ${version}`);
    badges(snapshot);
    render();
    schedule(PERIOD);
  } catch (error) {
    onFailure(error);
  } finally {
    isAsking = false;
  }
}

function onFailure(error) {
  if (error instanceof CallError && (error.status === 401 || error.status === 404)) {
    refusal = error.status === 401 ? "This key is not good here." : "This gateway has no operators: set gateway.admin_keys in its file and start it again.";
    keys.operator.set("");
    tell("", "");
    render();
    return;
  }
  failures++;
  const pause = Math.min(LONGEST_PAUSE, PERIOD * 2 ** Math.min(failures, 10));
  if (!(error instanceof CallError)) console.error(error);
  tell("lost", `${error instanceof CallError ? error.message : "The answer could not be read."} Trying again …`);
  schedule(pause);
}

function tell(state, text, more = "") {
  setData(link, "state", state);
  setText(words, text);
  setText(details, more);
}

function badges(snapshot) {
  const firing = snapshot.alerts.filter((alert) => alert.is_firing).length;
  const { badge } = links.get("alerts");
  setText(badge, String(firing));
  setHidden(badge, firing === 0);
}

forget.addEventListener("click", () => {
  keys.operator.set("");
  refusal = null;
  store.reset();
  made.clear();
  tell("", "");
  render();
});
document.addEventListener("visibilitychange", ask);
addEventListener("hashchange", route);
route();
ask();
