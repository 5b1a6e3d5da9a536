// A chat with any model of the fleet. What is said stays in this page.

import { call, CallError, events, getModels, keys } from "../api.js";
import { el, setHidden, setText } from "../dom.js";
import * as format from "../format.js";
import { makeEmpty } from "../parts.js";

export const title = "Playground";

export function create() {
  const key = el("input", { type: "password", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  const model = el("select", {});
  const system = el("textarea", { rows: "3", placeholder: "none" });
  const temperature = el("input", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "default" });
  const limit = el("input", { type: "number", min: "1", max: "1000000", step: "1", value: "512" });
  const fault = el("p", { class: "notice bad", role: "alert", hidden: true });
  const thread = el("div", { class: "thread", role: "log", "aria-label": "Conversation" });
  const empty = makeEmpty("Say something", "Pick a model and write. Answers come as they are made, with their times and the way they took.");
  const text = el("textarea", { rows: "1", placeholder: "Message", "aria-label": "Message" });
  const send = el("button", { class: "primary", type: "submit" }, "Send");
  const clear = el("button", { type: "button" }, "New chat");
  const state = { messages: [], running: null, hasModels: false };
  key.value = keys.client.get();

  const loadModels = async () => {
    try {
      const names = await getModels();
      const before = model.value;
      model.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
      if (names.includes(before)) model.value = before;
      state.hasModels = names.length > 0;
      tell(names.length ? "" : "No replica has told yet which models it serves.");
    } catch (error) {
      if (!(error instanceof CallError)) throw error;
      state.hasModels = false;
      tell(error.status === 401 ? "This gateway needs an API key: enter one of a client." : error.message);
    }
  };
  const tell = (words) => {
    setText(fault, words);
    setHidden(fault, !words);
  };
  key.addEventListener("change", () => {
    keys.client.set(key.value.trim());
    loadModels();
  });
  const stop = () => state.running?.abort();
  const options = () => {
    const found = { model: model.value, stream: true, stream_options: { include_usage: true } };
    if (limit.value) found.max_tokens = Number(limit.value);
    if (temperature.value) found.temperature = Number(temperature.value);
    return found;
  };
  const submit = async () => {
    if (state.running) return stop();
    const said = text.value.trim();
    if (!said || !model.value) return undefined;
    text.value = "";
    setHidden(empty, true);
    thread.append(makeSaid("user", "You", said).element);
    state.messages.push({ role: "user", content: said });
    const answer = makeSaid("assistant", model.value, "");
    thread.append(answer.element);
    state.running = new AbortController();
    setText(send, "Stop");
    const head = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    const reply = await answered({ ...options(), messages: [...head, ...state.messages] }, state.running.signal, answer);
    // A question without an answer is not part of the conversation.
    if (reply) state.messages.push({ role: "assistant", content: reply });
    else state.messages.pop();
    state.running = null;
    setText(send, "Send");
    return text.focus();
  };
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  clear.addEventListener("click", () => {
    stop();
    state.messages = [];
    thread.replaceChildren(empty);
    setHidden(empty, false);
  });
  thread.append(empty);
  loadModels();
  const form = el("form", { class: "compose", onsubmit: (event) => { event.preventDefault(); submit(); } }, text, send);
  const settings = el("div", { class: "card settings" },
    el("label", { class: "field" }, "Model", model),
    el("label", { class: "field" }, "API key of a client", key),
    el("label", { class: "field" }, "System message", system),
    el("div", { class: "pair" }, el("label", { class: "field" }, "Temperature", temperature), el("label", { class: "field" }, "Max tokens", limit)));
  return {
    element: el("div", { onkeydown: (event) => event.key === "Escape" && stop() },
      el("div", { class: "head" }, el("h1", {}, title), el("div", { class: "tools" }, clear)), fault,
      el("div", { class: "play" }, settings, el("section", { class: "card talk" }, thread, form))),
    update() {
      if (!state.hasModels && fault.hidden) loadModels();
    },
  };
}

function makeSaid(kind, who, words) {
  const said = { text: el("div", { class: "text" }, words), thought: el("div", { class: "thought", hidden: true }), facts: el("p", { class: "facts" }), fault: el("p", { class: "fault" }) };
  said.element = el("article", { class: `said ${kind}` }, el("p", { class: "who" }, who), said.thought, said.text, said.fault, said.facts);
  return said;
}

/** Stream one answer into the page; its text, or "" if there was none. */
async function answered(body, signal, said) {
  const start = performance.now();
  let first = null;
  let tokens = 0;
  let whole = "";
  let thought = "";
  let route = "";
  try {
    const response = await call("/v1/chat/completions", { method: "POST", key: keys.client.get(), body, signal });
    route = response.headers.get("x-headrace-route") ?? "";
    for await (const event of events(response)) {
      if (event.error) throw new CallError(500, String(event.error.message ?? "The answer broke off."));
      if (event.usage) tokens = event.usage.completion_tokens;
      const delta = event.choices?.[0]?.delta ?? {};
      const more = delta.content ?? "";
      const more_thought = delta.reasoning_content ?? delta.reasoning ?? "";
      if (!more && !more_thought) continue;
      first ??= performance.now();
      whole += more;
      thought += more_thought;
      setText(said.text, whole);
      setText(said.thought, thought);
      setHidden(said.thought, !thought);
      follow(said.element);
    }
  } catch (error) {
    setText(said.fault, error.name === "AbortError" ? "Stopped." : error instanceof CallError ? error.message : "The answer could not be read.");
  }
  const end = performance.now();
  const facts = [];
  if (first !== null) facts.push(`first token ${format.seconds((first - start) / 1000)}`, `${format.seconds((end - start) / 1000)} in all`);
  if (tokens > 1 && first !== null && end > first) facts.push(`${tokens} tokens`, `${format.count(((tokens - 1) * 1000) / (end - first))} a second`);
  if (route) facts.push(route);
  setText(said.facts, facts.join(" · "));
  follow(said.element);
  return whole;
}

/** Keep the end in sight, unless the reader has gone up. */
function follow(element) {
  const below = element.getBoundingClientRect().bottom - innerHeight;
  if (below > -120 && below < 240) window.scrollBy(0, Math.max(0, below + 120));
}
