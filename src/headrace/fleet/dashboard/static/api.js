// Calls to the gateway. Keys are kept for this tab only, and leave it in one header.

const OPERATOR = "headrace.operator-key";
const CLIENT = "headrace.client-key";
const PATIENCE = 10_000;

// Relative to the page, so that a proxy may put the gateway below a path.
export const at = (path) => new URL(`..${path}`, document.baseURI);

export const keys = {
  operator: slot(OPERATOR),
  client: slot(CLIENT),
};

function slot(name) {
  let held = null;
  return {
    get() {
      try { held ??= sessionStorage.getItem(name); } catch { /* storage is off: memory does */ }
      return held ?? "";
    },
    set(value) {
      held = value;
      try { value ? sessionStorage.setItem(name, value) : sessionStorage.removeItem(name); } catch { /* as above */ }
    },
  };
}

/** A refusal of the gateway, with its status; 0: it could not be reached. */
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  // A header holds Latin-1 only; what is none cannot be a key.
  if (!/^[\x21-\x7e]*$/.test(key)) throw new CallError(401, "A key is printable ASCII without spaces.");
  return key ? { authorization: `Bearer ${key}` } : {};
}

export async function call(path, { key = "", method = "GET", body, signal } = {}) {
  const sent = headers(key);
  if (body !== undefined) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(at(path), {
      method, headers: sent, signal, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError(0, error.name === "TimeoutError" ? "The gateway did not answer in time." : "The gateway cannot be reached.");
  }
  if (!response.ok) throw new CallError(response.status, await messageOf(response));
  return response;
}

async function messageOf(response) {
  try {
    const { error } = await response.json();
    return String(error?.message ?? `Status ${response.status}.`);
  } catch {
    return `Status ${response.status}.`;
  }
}

export async function getDashboard(look) {
  const path = `/admin/dashboard?${new URLSearchParams(look)}`;
  const response = await call(path, { key: keys.operator.get(), signal: AbortSignal.timeout(PATIENCE) });
  return response.json();
}

export async function getModels() {
  const response = await call("/v1/models", { key: keys.client.get(), signal: AbortSignal.timeout(PATIENCE) });
  return (await response.json()).data.map((card) => String(card.id));
}

/** Events of a streamed answer, each its parsed data. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      for (const line of part.split("\n")) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  }
}
