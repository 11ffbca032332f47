"""PyPI openai as the client."""

import json
import time

import openai
from behaviours import BASE_URL, BYPASS, CAPPED_KEY, IMAGE_URL, KEY, NARROW_KEY, PNG, PROVIDER, behaviour, equal, model, raises, run
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

NATIVE = PROVIDER == "openai"
client = OpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, max_retries=0, default_headers=BYPASS)
chat = client.chat.completions
HELLO = [{"role": "user", "content": "hello there"}]
ORDERS = [{"role": "user", "content": 'call weather {"city": "Paris"}\ncall time {"zone": "CET"}'}]


def tool(name, argument):
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "strict": True, "parameters": schema}}


TOOLS = [tool("weather", "city"), tool("time", "zone")]


def mirrored(**request):
    """The request as the provider got it."""
    return json.loads(chat.create(model=model("mirror"), **request).choices[0].message.content)


@behaviour
def chat_is_answered_with_usage():
    answer = chat.create(model=model("echo"), messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    assert isinstance(answer, ChatCompletion)
    equal(answer.choices[0].message.content, "You said: hello there")
    equal(answer.choices[0].finish_reason, "stop")
    equal((answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens), (4, 4, 8))


@behaviour
def response_headers_tell_the_model_and_the_cost():
    answer = chat.with_raw_response.create(model=model("echo"), messages=[{"role": "user", "content": "headers"}])
    equal(answer.headers["x-proxium-model"], model("echo"))
    equal(answer.headers["x-proxium-cost-usd"], "0.000031")


@behaviour
def a_stream_has_chunks_and_its_usage_last():
    chunks = list(chat.create(model=model("echo"), messages=HELLO, stream=True, stream_options={"include_usage": True}))
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    equal("".join(deltas), "You said: hello there")
    assert len([delta for delta in deltas if delta]) > 1, deltas
    equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1], "stop")
    equal((chunks[-1].choices, chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens), ([], 2, 4))


@behaviour
def a_stream_that_asked_for_no_usage_has_no_usage_chunk():
    chunks = list(chat.create(model=model("echo"), messages=[{"role": "user", "content": "no usage"}], stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), chunks


@behaviour
def the_stream_helper_accumulates_the_answer():
    with chat.stream(model=model("echo"), messages=[{"role": "user", "content": "help"}]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    equal(final.choices[0].message.content, "You said: help")


@behaviour
def two_parallel_tool_calls_and_their_results():
    message = chat.create(model=model("tools"), messages=ORDERS, tools=TOOLS).choices[0].message
    answered(message, chat.create)


@behaviour
def two_parallel_tool_calls_and_their_results_streamed():
    with chat.stream(model=model("tools"), messages=ORDERS, tools=TOOLS) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        choice = stream.get_final_completion().choices[0]
    equal([(event.index, event.name, event.parsed_arguments) for event in done], [(0, "weather", {"city": "Paris"}), (1, "time", {"zone": "CET"})])
    equal(choice.finish_reason, "tool_calls")

    def streamed(**request):
        with chat.stream(**request) as stream:
            return stream.get_final_completion()

    answered(choice.message, streamed)


def answered(message, create):
    calls = message.tool_calls
    equal([(call.function.name, json.loads(call.function.arguments)) for call in calls], [("weather", {"city": "Paris"}), ("time", {"zone": "CET"})])
    assert calls[0].id != calls[1].id
    turn = message.model_dump(exclude_none=True, exclude={"parsed"})
    for call in turn["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
    results = [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, ("sunny", "noon"))]
    equal(create(model=model("tools"), messages=[*ORDERS, turn, *results], tools=TOOLS).choices[0].message.content, "Results: sunny, noon")


@behaviour
def images_reach_the_provider_by_address_and_by_data():
    parts = [{"type": "text", "text": "Look."}] + [{"type": "image_url", "image_url": {"url": url}} for url in (IMAGE_URL, f"data:image/png;base64,{PNG}")]
    seen = mirrored(messages=[{"role": "user", "content": parts}])["messages"][0]["content"]
    native = parts[1:]
    translated = [{"type": "image", "source": {"type": "url", "url": IMAGE_URL}}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]
    equal(seen[1:], native if NATIVE else translated)


@behaviour
def reasoning_comes_as_reasoning_content_unary_and_streamed():
    request = {"model": model("thinking"), "messages": HELLO, "reasoning_effort": "low"}
    message = chat.create(**request).choices[0].message
    equal((message.reasoning_content, message.content), ("They said: hello there", "You said: hello there"))
    deltas = [chunk.choices[0].delta for chunk in chat.create(**{**request, "messages": [{"role": "user", "content": "again"}]}, stream=True) if chunk.choices]
    equal("".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas), "They said: again")
    equal("".join(delta.content or "" for delta in deltas), "You said: again")
    back = mirrored(messages=[*HELLO, message.model_dump(exclude_none=True), {"role": "user", "content": "go on"}])
    if not NATIVE:
        assert "reasoning" not in json.dumps(back["messages"]) and "They said" not in json.dumps(back["messages"]), back


class Mirror(BaseModel):
    model: str


@behaviour
def structured_output_is_asked_for_and_parsed():
    message = chat.parse(model=model("mirror"), messages=HELLO, response_format=Mirror).choices[0].message
    equal(message.parsed.model, f"{PROVIDER}-mock-mirror")
    request = json.loads(message.content)
    schema = request["response_format"]["json_schema"]["schema"] if NATIVE else request["output_config"]["format"]["schema"]
    equal((schema["type"], schema["required"], schema["additionalProperties"]), ("object", ["model"], False))


@behaviour
def a_stop_sequence_ends_the_answer():
    answer = chat.create(model=model("echo"), messages=[{"role": "user", "content": "one END two"}], stop=["END"]).choices[0]
    equal((answer.message.content, answer.finish_reason), ("You said: one ", "stop"))


@behaviour
def an_answer_cut_at_the_limit_says_length():
    equal(chat.create(model=model("length"), messages=HELLO, max_tokens=5).choices[0].finish_reason, "length")


def each_way(call):
    """Unary, and as a stream."""
    for stream in (False, True):
        yield lambda **changes: list(call(**changes, stream=True)) if stream else call(**changes)


def refused(kind, status, code, sdk=client, **request):
    for create in each_way(lambda **more: sdk.chat.completions.create(**{"messages": HELLO, **request}, **more)):
        error = raises(kind, create)
        equal((error.status_code, error.code), (status, code))
        assert error.request_id or error.response.headers["x-proxium-request-id"]
    return error


@behaviour
def a_bad_key_is_an_AuthenticationError():
    refused(openai.AuthenticationError, 401, "invalid_key", client.with_options(api_key="px_nobody"), model=model("echo"))


@behaviour
def a_model_that_the_key_may_not_use_is_a_PermissionDeniedError():
    refused(openai.PermissionDeniedError, 403, "model_not_allowed", client.with_options(api_key=NARROW_KEY), model=model("echo"))


@behaviour
def an_unknown_model_is_a_NotFoundError():
    refused(openai.NotFoundError, 404, "model_not_found", model="none")


@behaviour
def a_bad_request_is_a_BadRequestError():
    equal(refused(openai.BadRequestError, 400, "invalid_request", model=model("echo"), messages=[]).param, "messages")


@behaviour
def the_providers_own_400_is_a_BadRequestError():
    refused(openai.BadRequestError, 400, None if NATIVE else "invalid_request_error", model=model("error-400"))


@behaviour
def a_used_up_key_is_a_RateLimitError_with_its_headers():
    capped = client.with_options(api_key=CAPPED_KEY)
    capped.chat.completions.create(model=model("echo"), messages=[{"role": "user", "content": "the only one"}])
    error = refused(openai.RateLimitError, 429, "tenant_capped", capped, model=model("echo"), messages=[{"role": "user", "content": "too many"}])
    equal((error.param, error.response.headers["x-ratelimit-remaining-requests"]), ("calls_per_hour", "0"))
    assert 0 < int(error.response.headers["retry-after"]) <= 3660, error.response.headers


@behaviour
def a_provider_at_its_limit_is_a_RateLimitError_and_then_rests():
    error = raises(openai.RateLimitError, lambda: chat.create(model=model("error-429"), messages=HELLO))
    equal((error.code, error.response.headers["retry-after"]), ("providers_failed", "1"))
    error = raises(openai.InternalServerError, lambda: chat.create(model=model("error-429"), messages=HELLO, stream=True))
    equal((error.status_code, error.code), (503, "providers_failed"))


@behaviour
def a_failing_provider_is_an_InternalServerError_502():
    refused(openai.InternalServerError, 502, "providers_failed", model=model("error-500"))
    refused(openai.InternalServerError, 502, "providers_failed", model=model("error-529"))
    refused(openai.InternalServerError, 502, "providers_failed", model=model("dead"))


@behaviour
def the_retry_after_of_a_limit_is_honoured_by_max_retries():
    began = time.monotonic()
    answer = client.with_options(max_retries=2).chat.completions.create(model=model("flaky"), messages=HELLO)
    equal(answer.choices[0].message.content, "You said: hello there")
    assert time.monotonic() - began >= 1


@behaviour
def a_timeout_of_the_client_is_an_APITimeoutError():
    for create in each_way(lambda **more: chat.create(model=model("hang"), messages=HELLO, timeout=0.3, **more)):
        raises(openai.APITimeoutError, create)


@behaviour
def a_deadline_is_an_InternalServerError_502():
    error = raises(openai.InternalServerError, lambda: chat.create(model=model("hang"), messages=HELLO, extra_headers={"x-proxium-timeout-ms": "300"}))
    equal((error.status_code, error.code), (502, "deadline_exceeded"))


def half(name, kind=openai.APIError):
    """The error of a broken stream, and what came before."""
    came = []

    def read():
        for chunk in chat.create(model=model(name), messages=HELLO, stream=True):
            came.append(chunk.choices[0].delta.content or "")

    error = raises(kind, read)
    return error, "".join(came)


@behaviour
def a_broken_stream_raises_after_what_came():
    error, came = half("closed")
    equal((came, error.body["code"]), ("Half", "stream_broken"))


@behaviour
def a_stream_that_is_cut_off_raises_after_what_came():
    # The body has no end: the SDKs hand on what their HTTP client says to that.
    _, came = half("cut", Exception)
    equal(came, "Half")


@behaviour
def an_error_in_a_stream_raises_after_what_came():
    error, came = half("failing")
    equal((came, error.message, error.type), ("Half", "Overloaded", "overloaded_error"))


run()
