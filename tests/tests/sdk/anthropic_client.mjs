// npm @anthropic-ai/sdk as the client.
import { BASE_URL, BYPASS, CAPPED_KEY, IMAGE_URL, KEY, NARROW_KEY, PNG, PROVIDER, SIGNATURE, all, behaviour, eachWay, equal, fetched, model, ok, raises, run, user } from "./behaviours.mjs";

const Anthropic = fetched("@anthropic-ai/sdk").Anthropic;
const { jsonSchemaOutputFormat } = fetched("@anthropic-ai/sdk/helpers/json-schema");
const NATIVE = PROVIDER === "anthropic";
const client = new Anthropic({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0, defaultHeaders: BYPASS });
const HELLO = user("hello there");
const ORDERS = user('call weather {"city": "Paris"}\ncall time {"zone": "CET"}');
const tool = (name, argument) => ({ name, input_schema: { type: "object", properties: { [argument]: { type: "string" } }, required: [argument] } });
const tools = [tool("weather", "city"), tool("time", "zone")];

const body = (name, request) => ({ model: model(name), messages: HELLO, max_tokens: 1000, ...request });
const create = (name, request = {}, options = {}, sdk = client) => sdk.messages.create(body(name, request), options);
const stream = (name, request = {}) => client.messages.stream(body(name, request));
const mirrored = async (messages) => JSON.parse((await create("mirror", { messages })).content[0].text);

behaviour("a message is answered with usage", async () => {
  const answer = await create("echo");
  equal([answer.type, answer.content.map(({ text }) => text), answer.stop_reason], ["message", ["You said: hello there"], "end_turn"]);
  equal([answer.usage.input_tokens, answer.usage.output_tokens], [2, 4]);
});

behaviour("a stream has every event and its usage", async () => {
  const events = await all(create("echo", { stream: true }));
  equal([events[0].type, events.at(-1).type], ["message_start", "message_stop"]);
  const deltas = events.filter(({ type }) => type === "content_block_delta").map(({ delta }) => delta.text);
  equal(deltas.join(""), "You said: hello there");
  ok(deltas.length > 1);
  const { delta, usage } = events.at(-2);
  equal([delta.stop_reason, usage.output_tokens], ["end_turn", 4]);
});

behaviour("the MessageStream helper gives text and the final message", async () => {
  const texts = [];
  const final = await stream("echo").on("text", (text) => texts.push(text)).finalMessage();
  equal([texts.join(""), final.content[0].text, final.stop_reason], ["You said: hello there", "You said: hello there", "end_turn"]);
  equal([final.usage.input_tokens, final.usage.output_tokens], [2, 4]);
});

const answered = async (message, ask) => {
  const calls = message.content.filter(({ type }) => type === "tool_use");
  equal([message.stop_reason, calls.map(({ name, input }) => [name, input])], ["tool_use", [["weather", { city: "Paris" }], ["time", { zone: "CET" }]]]);
  ok(calls[0].id !== calls[1].id);
  const results = calls.map(({ id }, at) => ({ type: "tool_result", tool_use_id: id, content: ["sunny", "noon"][at] }));
  const messages = [...ORDERS, { role: "assistant", content: message.content }, { role: "user", content: results }];
  equal((await ask({ messages, tools })).content[0].text, "Results: sunny, noon");
};

behaviour("two parallel tool calls and their results", async () => {
  const ask = (request) => create("tools", request);
  await answered(await ask({ messages: ORDERS, tools }), ask);
});

behaviour("two parallel tool calls and their results, streamed", async () => {
  const ask = (request) => stream("tools", request).finalMessage();
  await answered(await ask({ messages: ORDERS, tools }), ask);
});

behaviour("images reach the provider by address and by data", async () => {
  const native = [{ type: "image", source: { type: "url", url: IMAGE_URL } }, { type: "image", source: { type: "base64", media_type: "image/png", data: PNG } }];
  const translated = [IMAGE_URL, `data:image/png;base64,${PNG}`].map((url) => ({ type: "image_url", image_url: { url } }));
  const seen = (await mirrored(user([{ type: "text", text: "Look." }, ...native]))).messages[0].content;
  equal(seen.slice(1), NATIVE ? native : translated);
});

behaviour("thinking keeps its signature there and back, or is dropped cleanly, unary and streamed", async () => {
  const thinking = { max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 } };
  const thought = { type: "thinking", thinking: "They said: hello there", signature: SIGNATURE };
  const said = { type: "text", text: "You said: hello there" };
  for (const message of [await create("thinking", thinking), await stream("thinking", thinking).finalMessage()]) {
    equal(message.content.map(({ type, text, thinking, signature }) => (type === "text" ? { type, text } : { type, thinking, signature })), NATIVE ? [thought, said] : [said]);
  }
  const back = await mirrored([...HELLO, { role: "assistant", content: [thought, said] }, ...user("go on")]);
  if (NATIVE) equal(back.messages[1].content[0], thought);
  else ok(!JSON.stringify(back).includes("They said"));
});

behaviour("structured output is asked for and parsed", async () => {
  const schema = { type: "object", properties: { model: { type: "string" } }, required: ["model"], additionalProperties: false };
  const answer = await client.messages.parse(body("mirror", { output_config: { format: jsonSchemaOutputFormat(schema) } }));
  equal(answer.parsed_output.model, `${PROVIDER}-mock-mirror`);
  const request = JSON.parse(answer.content[0].text);
  const asked = NATIVE ? request.output_config.format.schema : request.response_format.json_schema.schema;
  equal([asked.type, asked.required, asked.additionalProperties], ["object", ["model"], false]);
});

behaviour("a stop sequence ends the answer", async () => {
  const answer = await create("echo", { messages: user("one END two"), stop_sequences: ["END"] });
  equal(answer.content[0].text, "You said: one ");
  // An OpenAI provider does not tell what ended it.
  equal([answer.stop_reason, answer.stop_sequence], NATIVE ? ["stop_sequence", "END"] : ["end_turn", null]);
});

behaviour("tokens are counted by the provider or estimated", async () => {
  const { input_tokens } = await client.messages.countTokens({ model: model("echo"), messages: HELLO });
  ok(NATIVE ? input_tokens === 2 : input_tokens > 10 && input_tokens < 100, `${input_tokens}`);
});

const refused = async (kind, status, type, code, name, request = {}, sdk = client) => {
  let error;
  for (const ask of eachWay((more) => create(name, { ...request, ...more }, {}, sdk))) {
    error = await raises(kind, ask);
    equal([error.status, error.error.type, error.error.error.type, error.error.error.code], [status, "error", type, code]);
  }
  return error;
};
const as = (apiKey) => client.withOptions({ apiKey });

behaviour("a bad key is an AuthenticationError", () =>
  refused(Anthropic.AuthenticationError, 401, "authentication_error", "invalid_key", "echo", {}, as("px_nobody")));
behaviour("a model that the key may not use is a PermissionDeniedError", () =>
  refused(Anthropic.PermissionDeniedError, 403, "permission_error", "model_not_allowed", "echo", {}, as(NARROW_KEY)));
behaviour("an unknown model is a NotFoundError", () => refused(Anthropic.NotFoundError, 404, "not_found_error", "model_not_found", "none"));
behaviour("a bad request is a BadRequestError", () =>
  refused(Anthropic.BadRequestError, 400, "invalid_request_error", "invalid_request", "echo", { messages: [] }));
behaviour("the provider's own 400 is a BadRequestError", async () => {
  for (const ask of eachWay((more) => create("error-400", more))) {
    equal((await raises(Anthropic.BadRequestError, ask)).error.error.type, "invalid_request_error");
  }
});

behaviour("a used up key is a RateLimitError with its headers", async () => {
  await create("echo", {}, {}, as(CAPPED_KEY));
  const error = await refused(Anthropic.RateLimitError, 429, "rate_limit_error", "tenant_capped", "echo", {}, as(CAPPED_KEY));
  equal(error.headers.get("x-ratelimit-remaining-requests"), "0");
  ok(Number(error.headers.get("retry-after")) > 0);
});

behaviour("a failing provider is an InternalServerError 502, one that rests 503", async () => {
  await refused(Anthropic.InternalServerError, 502, "api_error", "providers_failed", "error-500");
  await refused(Anthropic.InternalServerError, 502, "api_error", "providers_failed", "error-529");
  const error = await raises(Anthropic.RateLimitError, () => create("error-429"));
  equal(error.headers.get("retry-after"), "1");
  equal((await raises(Anthropic.InternalServerError, () => create("error-429"))).status, 503);
});

behaviour("the retry-after of a limit is honoured by maxRetries", async () => {
  const began = performance.now();
  equal((await create("flaky", {}, { maxRetries: 2 })).content[0].text, "You said: hello there");
  ok(performance.now() - began >= 990);
});

behaviour("a timeout of the client is an APIConnectionTimeoutError", async () => {
  for (const ask of eachWay((more) => create("hang", more, { timeout: 300 }))) await raises(Anthropic.APIConnectionTimeoutError, ask);
});

const half = async (name, kind = Anthropic.APIError) => {
  let came = "";
  const error = await raises(kind, () => stream(name).on("text", (text) => (came += text)).finalMessage());
  return [came, error];
};

behaviour("a broken stream raises after what came", async () => {
  const [came, error] = await half("closed");
  equal([came, error.error.error.type], ["Half", "api_error"]);
});

// The body has no end: the SDK hands on what its HTTP client says to that.
behaviour("a stream that is cut off raises after what came", async () => equal((await half("cut", Error))[0], "Half"));

behaviour("an error in a stream raises after what came", async () => {
  const [came, error] = await half("failing");
  equal([came, error.error.error], ["Half", { type: "overloaded_error", message: "Overloaded" }]);
});

await run();
