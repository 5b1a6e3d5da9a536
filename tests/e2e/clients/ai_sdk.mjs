// The Vercel AI SDK. HEADRACE_URL says where the server is.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "headrace",
  baseURL: `${process.env.HEADRACE_URL}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const common = { model: provider("smollm2-135m"), temperature: 0, maxOutputTokens: 100, maxRetries: 0, seed: 1 };
const prompt = "What is the capital of France?";
const Place = z.object({ city: z.string().max(30), people: z.number().int().min(0).max(9e7) });

const whole = await generateText({ ...common, prompt });
assert.ok(whole.text);
assert.ok(whole.usage.outputTokens > 0);
assert.ok(["stop", "length"].includes(whole.finishReason));

const stream = streamText({ ...common, prompt, onError: ({ error }) => { throw error; } });
const pieces = [];
for await (const piece of stream.textStream) pieces.push(piece);
assert.equal(pieces.join(""), whole.text);
assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);

const object = await generateText({ ...common, prompt, output: Output.object({ schema: Place }) });
Place.parse(object.output);
const objectStream = streamText({ ...common, prompt, output: Output.object({ schema: Place }), onError: ({ error }) => { throw error; } });
let partials = 0;
for await (const partial of objectStream.partialOutputStream) partials += partial ? 1 : 0;
assert.ok(partials > 0);
assert.deepEqual(await objectStream.output, object.output);

const places = [];
const tools = {
  findPlace: tool({
    description: "Find a place.",
    inputSchema: Place,
    execute: async (place) => (places.push(Place.parse(place)), "found"),
  }),
};
const called = await generateText({
  ...common,
  prompt,
  tools,
  toolChoice: "required",
  providerOptions: { headrace: { parallel_tool_calls: false } }, // a tiny model would call for ever
});
assert.equal(called.finishReason, "tool-calls");
assert.ok(places.length >= 1);
assert.deepEqual(called.toolCalls[0].input, places[0]);

const first = places.length;
const calledStream = streamText({
  ...common,
  prompt,
  tools,
  toolChoice: { type: "tool", toolName: "findPlace" },
  stopWhen: stepCountIs(2),
  onError: ({ error }) => { throw error; },
});
const kinds = new Set();
for await (const part of calledStream.fullStream) kinds.add(part.type);
for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result", "finish"]) {
  assert.ok(kinds.has(kind), `${kind} is missing in ${[...kinds]}`);
}
assert.ok(places.length > first);
assert.equal((await calledStream.steps).length, 2);
console.log("ok");
