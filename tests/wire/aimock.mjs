// A model server on a free loopback port. Prints its base URL as one line, and ends when its
// standard input does, so that it never outlives whoever started it.

import { LLMock } from "@copilotkit/aimock";

const WEATHER = { name: "weather", arguments: '{"city":"Oslo","note":"blåbær"}', id: "call_weather" };
const ENTRY = { name: "add_entry", arguments: '{"description":"coffee","amount":3.5}', id: "call_entry" };
const TIME = { name: "time", arguments: '{"zone":"CET"}', id: "call_time" };

const mock = new LLMock({ host: "127.0.0.1", port: 0, strict: true, chunkSize: 4, journalMaxEntries: 100 });

mock
  .on({ toolCallId: TIME.id }, { content: "It is raining at noon." })
  .onMessage("say hello", {
    content: "Hello from the other side: grüß gott 👋",
    usage: { prompt_tokens: 1000, completion_tokens: 10 },
  })
  .onMessage("think first", { content: "Forty-two.", reasoning: "Six times seven." })
  .onMessage("weather and time", { toolCalls: [WEATHER, TIME] })
  .on({ toolCallId: ENTRY.id }, { content: "It is in the book." })
  .onMessage("put coffee in the book", { toolCalls: [ENTRY] })
  .onMessage("speak and call", { content: "Let me look.", toolCalls: [WEATHER] })
  .onMessage("write for long", { content: "Once upon a", finishReason: "length" })
  .onMessage("say something bad", { content: "", finishReason: "content_filter" })
  .onMessage("too many", {
    error: { message: "Rate limit reached", type: "requests", code: "rate_limit_exceeded" },
    status: 429,
    retryAfter: 7,
  })
  .onMessage("no money left", {
    error: { message: "You exceeded your current quota", type: "insufficient_quota", code: "insufficient_quota" },
    status: 429,
  })
  .onMessage("too long", {
    error: { message: "Context too long", type: "invalid_request_error", code: "context_length_exceeded" },
    status: 400,
  })
  .onMessage("break down", { error: { message: "The server had an error", type: "server_error" }, status: 500 })
  .onMessage("stop in the middle", { content: "This will never be whole." }, { latency: 40, truncateAfterChunks: 3 })
  .onMessage("hang up in the middle", { content: "This will never be whole." }, { latency: 40, disconnectAfterMs: 150 })
  .onMessage("hang up at once", { content: "x" }, { chaos: { disconnectRate: 1 } })
  .onMessage("talk nonsense", { content: "x" }, { chaos: { malformedRate: 1 } })
  .onMessage("fall silent", { content: "This takes too long." }, { streamingProfile: { ttft: 60_000 } })
  .onMessage("take your time", { content: "Slow and steady." }, { latency: 60 });

console.log(`${await mock.start()}/v1`);

process.stdin.resume().on("end", async () => {
  await mock.stop();
  process.exit(0);
});
