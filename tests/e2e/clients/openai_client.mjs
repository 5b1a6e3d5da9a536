// The official client for Node. HEADRACE_URL says where the server is.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = "smollm2-135m";
const client = new OpenAI({ baseURL: `${process.env.HEADRACE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const fields = { model, messages, temperature: 0, max_tokens: 40 };
const Place = z.object({ city: z.string().max(30), people: z.number().int().min(0).max(9e7) });

const models = [];
for await (const one of client.models.list()) models.push(one.id);
assert.deepEqual(models, [model]);

const whole = await client.chat.completions.create(fields);
assert.ok(whole.choices[0].message.content);
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

const stream = client.chat.completions.stream({ ...fields, stream_options: { include_usage: true } });
let pieces = 0;
for await (const chunk of stream) pieces += chunk.choices.length;
assert.ok(pieces > 2);
const final = await stream.finalChatCompletion();
assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
assert.deepEqual(final.usage.completion_tokens, whole.usage.completion_tokens);

const parsed = await client.chat.completions.parse({
  ...fields,
  max_tokens: 100,
  response_format: zodResponseFormat(Place, "place"),
});
assert.deepEqual(Place.parse(parsed.choices[0].message.parsed), parsed.choices[0].message.parsed);

const tools = [zodFunction({ name: "find_place", parameters: Place })];
// One call: a tiny model that may make several makes them for ever.
const forced = { ...fields, max_tokens: 100, tools, tool_choice: "required", parallel_tool_calls: false };
const called = await client.chat.completions.parse(forced);
const call = called.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "find_place");
Place.parse(call.function.parsed_arguments);

const streamedCall = client.chat.completions.stream(forced);
const told = await streamedCall.finalChatCompletion();
assert.equal(told.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);

let turns = 0;
const runner = client.chat.completions.runTools({
  ...fields,
  max_tokens: 100,
  tool_choice: { type: "function", function: { name: "find_place" } },
  tools: [{ type: "function", function: { function: () => (turns++, "Paris"), parse: JSON.parse, name: "find_place", description: "Find a place.", parameters: { type: "object", properties: {} } } }],
});
await runner.done();
assert.equal(turns, 1);

const text = await client.completions.create({ model, prompt: "The capital of France is", max_tokens: 4, temperature: 0 });
assert.match(text.choices[0].text, /Paris/);

await assert.rejects(client.chat.completions.create({ ...fields, temperature: -1 }), OpenAI.BadRequestError);
await assert.rejects(client.chat.completions.create({ ...fields, model: "gpt-4" }), OpenAI.NotFoundError);
console.log("ok");
