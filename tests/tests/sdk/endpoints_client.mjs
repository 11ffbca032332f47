// npm openai as the client of the other endpoints; MODEL is asked for responses, native or translated.
import { BASE_URL, CAPPED_KEY, KEY, all, behaviour, eachWay, equal, fetched, ok, raises, run } from "./behaviours.mjs";

const OpenAI = fetched("openai").OpenAI;
const { MODEL } = process.env;
const NATIVE = MODEL === "respond";
const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: KEY, maxRetries: 0 });
const capped = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: CAPPED_KEY, maxRetries: 0 });
const tools = [{ type: "function", name: "weather", strict: false, parameters: { type: "object", properties: { city: { type: "string" } } } }];
const ORDER = 'call weather {"city": "Paris"}';
const ask = (request = {}, sdk = client) => sdk.responses.create({ model: MODEL, input: "hello there", ...request });

behaviour("models are listed and retrieved", async () => {
  const ids = (await all(client.models.list())).map((model) => model.id);
  ok(ids.includes("embed") && ids.includes("p1"));
  equal((await client.models.retrieve("p1")).owned_by, "first");
  await raises(OpenAI.NotFoundError, () => client.models.retrieve("none"));
});

behaviour("embeddings come as the SDK asks for them", async () => {
  const { data, usage } = await client.embeddings.create({ model: "embed", input: ["hello there", "you"], dimensions: 5 });
  equal([data.map((item) => item.embedding.length), usage.total_tokens], [[5, 5], 3]);
});

behaviour("moderations tell what is flagged", async () => {
  const { results } = await client.moderations.create({ model: "moderate", input: "harm" });
  equal(results.map((result) => result.flagged), [true]);
});

behaviour("a response is answered with usage, also as a stream", async () => {
  const answer = await ask();
  equal([answer.output_text, answer.status, answer.usage.input_tokens, answer.usage.output_tokens], ["You said: hello there", "completed", 2, 4]);
  const events = await all(ask({ stream: true }));
  equal([events[0].type, events.at(-1).type], ["response.created", "response.completed"]);
  const text = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
  equal([text, events.at(-1).response.usage.total_tokens], ["You said: hello there", 6]);
});

behaviour("the SDK's own stream gathers a tool call", async () => {
  const whole = await client.responses.stream({ model: MODEL, input: ORDER, tools }).finalResponse();
  const [call] = whole.output.filter((item) => item.type === "function_call");
  equal([call.name, JSON.parse(call.arguments)], ["weather", { city: "Paris" }]);
  const input = [{ role: "user", content: ORDER }, ...whole.output, { type: "function_call_output", call_id: call.call_id, output: "rain" }];
  equal((await ask({ input, tools })).output_text, "Results: rain");
});

behaviour("a response is gone on from where it was made", async () => {
  const first = await ask();
  if (NATIVE) equal((await ask({ previous_response_id: first.id })).previous_response_id, first.id);
  const error = await raises(OpenAI.NotFoundError, () => ask({ previous_response_id: "resp_nobodys" }));
  equal(error.code, "response_not_found");
});

behaviour("a capped key is refused, streamed or not", async () => {
  for (const call of eachWay((way) => ask(way, capped))) equal((await raises(OpenAI.RateLimitError, call)).code, "tenant_capped");
});

await run();
