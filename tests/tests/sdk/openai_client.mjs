// npm openai as the client.
import { BASE_URL, BYPASS, CAPPED_KEY, IMAGE_URL, KEY, NARROW_KEY, PNG, PROVIDER, all, behaviour, eachWay, equal, fetched, model, ok, raises, run, user } from "./behaviours.mjs";

const OpenAI = fetched("openai").OpenAI;
const NATIVE = PROVIDER === "openai";
const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: KEY, maxRetries: 0, defaultHeaders: BYPASS });
const HELLO = user("hello there");
const ORDERS = user('call weather {"city": "Paris"}\ncall time {"zone": "CET"}');
const tool = (name, argument) => ({
  type: "function",
  function: { name, parameters: { type: "object", properties: { [argument]: { type: "string" } }, required: [argument] } },
});
const tools = [tool("weather", "city"), tool("time", "zone")];

const create = (name, request = {}, options = {}, sdk = client) =>
  sdk.chat.completions.create({ model: model(name), messages: HELLO, ...request }, options);
const mirrored = async (request) => JSON.parse((await create("mirror", request)).choices[0].message.content);
const text = (chunks, member = "content") => chunks.map((chunk) => chunk.choices[0]?.delta[member] ?? "").join("");

behaviour("chat is answered with usage", async () => {
  const answer = await create("echo");
  equal([answer.object, answer.choices[0].message.content, answer.choices[0].finish_reason], ["chat.completion", "You said: hello there", "stop"]);
  equal([answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens], [2, 4, 6]);
});

behaviour("response headers tell the model and the cost", async () => {
  const { response } = await create("echo").withResponse();
  equal([response.headers.get("x-proxium-model"), response.headers.get("x-proxium-cost-usd")], [model("echo"), "0.000042"]);
});

behaviour("a stream has chunks and its usage last", async () => {
  const chunks = await all(create("echo", { stream: true, stream_options: { include_usage: true } }));
  equal(text(chunks), "You said: hello there");
  ok(chunks.filter((chunk) => chunk.choices[0]?.delta.content).length > 1);
  const { choices, usage } = chunks.at(-1);
  equal([choices, usage.prompt_tokens, usage.completion_tokens], [[], 2, 4]);
});

behaviour("a stream that asked for no usage has no usage chunk", async () => {
  ok((await all(create("echo", { stream: true }))).every((chunk) => chunk.choices.length === 1 && !chunk.usage));
});

behaviour("the stream helper accumulates the answer", async () => {
  const deltas = [];
  const stream = client.chat.completions.stream({ model: model("echo"), messages: HELLO }).on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  equal([deltas.join(""), final.choices[0].message.content], ["You said: hello there", "You said: hello there"]);
});

const answered = async (message, ask) => {
  const calls = message.tool_calls;
  equal(calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]), [["weather", { city: "Paris" }], ["time", { zone: "CET" }]]);
  ok(calls[0].id !== calls[1].id);
  const turn = { role: "assistant", content: message.content, tool_calls: calls.map(({ id, type, function: { name, arguments: given } }) => ({ id, type, function: { name, arguments: given } })) };
  const results = calls.map((call, at) => ({ role: "tool", tool_call_id: call.id, content: ["sunny", "noon"][at] }));
  equal((await ask({ messages: [...ORDERS, turn, ...results], tools })).choices[0].message.content, "Results: sunny, noon");
};

behaviour("two parallel tool calls and their results", async () => {
  const { message, finish_reason } = (await create("tools", { messages: ORDERS, tools })).choices[0];
  equal(finish_reason, "tool_calls");
  await answered(message, (request) => create("tools", request));
});

behaviour("two parallel tool calls and their results, streamed", async () => {
  const ask = (request) => client.chat.completions.stream({ model: model("tools"), ...request }).finalChatCompletion();
  const { message, finish_reason } = (await ask({ messages: ORDERS, tools })).choices[0];
  equal(finish_reason, "tool_calls");
  await answered(message, ask);
});

behaviour("images reach the provider by address and by data", async () => {
  const native = [IMAGE_URL, `data:image/png;base64,${PNG}`].map((url) => ({ type: "image_url", image_url: { url } }));
  const translated = [{ type: "image", source: { type: "url", url: IMAGE_URL } }, { type: "image", source: { type: "base64", media_type: "image/png", data: PNG } }];
  const seen = (await mirrored({ messages: user([{ type: "text", text: "Look." }, ...native]) })).messages[0].content;
  equal(seen.slice(1), NATIVE ? native : translated);
});

behaviour("reasoning comes as reasoning_content, unary and streamed", async () => {
  const { message } = (await create("thinking", { reasoning_effort: "low" })).choices[0];
  equal([message.reasoning_content, message.content], ["They said: hello there", "You said: hello there"]);
  const chunks = await all(create("thinking", { reasoning_effort: "low", stream: true }));
  equal([text(chunks, "reasoning_content"), text(chunks)], ["They said: hello there", "You said: hello there"]);
});

behaviour("structured output is asked for and parsed", async () => {
  const schema = { type: "object", properties: { model: { type: "string" } }, required: ["model"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "mirror", strict: true, schema } };
  const { message } = (await client.chat.completions.parse({ model: model("mirror"), messages: HELLO, response_format })).choices[0];
  const request = message.parsed ?? JSON.parse(message.content);
  equal(request.model, `${PROVIDER}-mock-mirror`);
  equal(NATIVE ? request.response_format.json_schema.schema : request.output_config.format.schema, schema);
});

behaviour("a stop sequence ends the answer", async () => {
  const [choice] = (await create("echo", { messages: user("one END two"), stop: ["END"] })).choices;
  equal([choice.message.content, choice.finish_reason], ["You said: one ", "stop"]);
});

const refused = async (kind, status, code, name, request = {}, sdk = client) => {
  let error;
  for (const ask of eachWay((more) => create(name, { ...request, ...more }, {}, sdk))) {
    error = await raises(kind, ask);
    equal([error.status, error.code], [status, code]);
  }
  return error;
};
const as = (apiKey) => client.withOptions({ apiKey });

behaviour("a bad key is an AuthenticationError", () => refused(OpenAI.AuthenticationError, 401, "invalid_key", "echo", {}, as("px_nobody")));
behaviour("a model that the key may not use is a PermissionDeniedError", () =>
  refused(OpenAI.PermissionDeniedError, 403, "model_not_allowed", "echo", {}, as(NARROW_KEY)));
behaviour("an unknown model is a NotFoundError", () => refused(OpenAI.NotFoundError, 404, "model_not_found", "none"));
behaviour("a bad request is a BadRequestError", () => refused(OpenAI.BadRequestError, 400, "invalid_request", "echo", { messages: [] }));
behaviour("the provider's own 400 is a BadRequestError", () =>
  refused(OpenAI.BadRequestError, 400, NATIVE ? null : "invalid_request_error", "error-400"));

behaviour("a used up key is a RateLimitError with its headers", async () => {
  await create("echo", {}, {}, as(CAPPED_KEY));
  const error = await refused(OpenAI.RateLimitError, 429, "tenant_capped", "echo", {}, as(CAPPED_KEY));
  equal([error.param, error.headers.get("x-ratelimit-remaining-requests")], ["calls_per_hour", "0"]);
  ok(Number(error.headers.get("retry-after")) > 0);
});

behaviour("a failing provider is an InternalServerError 502, one that rests 503", async () => {
  await refused(OpenAI.InternalServerError, 502, "providers_failed", "error-500");
  await refused(OpenAI.InternalServerError, 502, "providers_failed", "error-529");
  const error = await raises(OpenAI.RateLimitError, () => create("error-429"));
  equal(error.headers.get("retry-after"), "1");
  equal((await raises(OpenAI.InternalServerError, () => create("error-429"))).status, 503);
});

behaviour("the retry-after of a limit is honoured by maxRetries", async () => {
  const began = performance.now();
  equal((await create("flaky", {}, { maxRetries: 2 })).choices[0].message.content, "You said: hello there");
  ok(performance.now() - began >= 990);
});

behaviour("a timeout of the client is an APIConnectionTimeoutError", async () => {
  for (const ask of eachWay((more) => create("hang", more, { timeout: 300 }))) await raises(OpenAI.APIConnectionTimeoutError, ask);
});

const half = async (name, kind = OpenAI.APIError) => {
  let came = "";
  const error = await raises(kind, async () => {
    for await (const chunk of await create(name, { stream: true })) came += chunk.choices[0].delta.content ?? "";
  });
  return [came, error];
};

behaviour("a broken stream raises after what came", async () => {
  const [came, error] = await half("closed");
  equal([came, error.code], ["Half", "stream_broken"]);
});

// The body has no end: the SDK hands on what its HTTP client says to that.
behaviour("a stream that is cut off raises after what came", async () => equal((await half("cut", Error))[0], "Half"));

behaviour("an error in a stream raises after what came", async () => {
  const [came, error] = await half("failing");
  equal([came, error.type, error.error.message], ["Half", "overloaded_error", "Overloaded"]);
});

await run();
