"""PyPI anthropic as the client."""

import json
import time

import anthropic
from anthropic import Anthropic
from anthropic.types import Message
from behaviours import (BASE_URL, BYPASS, CAPPED_KEY, IMAGE_URL, KEY, NARROW_KEY, NATIVE_SIGNATURE, PNG, PROVIDER, behaviour, equal, model, raises, run)
from pydantic import BaseModel

NATIVE = PROVIDER == "anthropic"
client = Anthropic(base_url=BASE_URL, api_key=KEY, max_retries=0, default_headers=BYPASS)
messages = client.messages
HELLO = [{"role": "user", "content": "hello there"}]
ORDERS = [{"role": "user", "content": 'call weather {"city": "Paris"}\ncall time {"zone": "CET"}'}]


def tool(name, argument):
    return {"name": name, "description": "A tool.", "input_schema": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}}


TOOLS = [tool("weather", "city"), tool("time", "zone")]


def create(name, turns=HELLO, sdk=client, **more):
    return sdk.messages.create(model=model(name), messages=turns, max_tokens=1000, **more)


def stream(name, turns=HELLO, **more):
    """The helper's events and its final message."""
    with messages.stream(model=model(name), messages=turns, max_tokens=1000, **more) as events:
        return list(events), events.get_final_message()


def mirrored(turns, **more):
    """The request as the provider got it."""
    return json.loads(create("mirror", turns, **more).content[0].text)


@behaviour
def a_message_is_answered_with_usage():
    answer = create("echo", system="Be brief.")
    assert isinstance(answer, Message)
    equal([(block.type, block.text) for block in answer.content], [("text", "You said: hello there")])
    equal((answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens), ("end_turn", 4, 4))


@behaviour
def a_bearer_token_is_a_key_too():
    bearer = Anthropic(base_url=BASE_URL, auth_token=KEY, api_key=None, max_retries=0, default_headers=BYPASS)
    equal(create("echo", sdk=bearer).content[0].text, "You said: hello there")


@behaviour
def a_stream_has_every_event_and_its_usage():
    events = list(create("echo", stream=True))
    kinds = [event.type for event in events]
    equal((kinds[:2], kinds[-3:]), (["message_start", "content_block_start"], ["content_block_stop", "message_delta", "message_stop"]))
    deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
    equal("".join(deltas), "You said: hello there")
    assert len(deltas) > 1, deltas
    delta = events[-2]
    equal((delta.delta.stop_reason, delta.usage.output_tokens), ("end_turn", 4))
    equal(events[0].message.usage.input_tokens if NATIVE else delta.usage.input_tokens, 2)


@behaviour
def the_stream_helper_gives_text_and_the_final_message():
    with messages.stream(model=model("echo"), messages=HELLO, max_tokens=1000) as events:
        equal("".join(events.text_stream), "You said: hello there")
        final = events.get_final_message()
    equal((final.content[0].text, final.stop_reason), ("You said: hello there", "end_turn"))
    equal((final.usage.input_tokens, final.usage.output_tokens), (2, 4))


def answered(message, ask):
    calls = [block for block in message.content if block.type == "tool_use"]
    equal(message.stop_reason, "tool_use")
    equal([(call.name, call.input) for call in calls], [("weather", {"city": "Paris"}), ("time", {"zone": "CET"})])
    assert calls[0].id != calls[1].id
    turn = {"role": "assistant", "content": [block.model_dump(exclude_none=True, exclude={"caller", "parsed_output"}) for block in message.content]}
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in zip(calls, ("sunny", "noon"))]
    turns = [*ORDERS, turn, {"role": "user", "content": results}]
    equal(ask("tools", turns, tools=TOOLS).content[0].text, "Results: sunny, noon")


@behaviour
def two_parallel_tool_calls_and_their_results():
    answered(create("tools", ORDERS, tools=TOOLS), create)


@behaviour
def two_parallel_tool_calls_and_their_results_streamed():
    events, message = stream("tools", ORDERS, tools=TOOLS)
    assert len([event for event in events if event.type == "input_json"]) >= 2, events
    answered(message, lambda *turns, **more: stream(*turns, **more)[1])


@behaviour
def images_reach_the_provider_by_address_and_by_data():
    native = [{"type": "image", "source": {"type": "url", "url": IMAGE_URL}}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]
    translated = [{"type": "image_url", "image_url": {"url": url}} for url in (IMAGE_URL, f"data:image/png;base64,{PNG}")]
    seen = mirrored([{"role": "user", "content": [{"type": "text", "text": "Look."}, *native]}])["messages"][0]["content"]
    equal(seen[1:], native if NATIVE else translated)


def thinks(message, text):
    """Thinking with its signature from a provider of the dialect, nothing of it from another; and so again on the way back."""
    if NATIVE:
        thinking = message.content[0]
        equal((thinking.type, thinking.thinking, thinking.signature), ("thinking", f"They said: {text}", NATIVE_SIGNATURE))
    equal([block.text for block in message.content if block.type == "text"], [f"You said: {text}"])
    thought = {"type": "thinking", "thinking": f"They said: {text}", "signature": NATIVE_SIGNATURE}
    turn = {"role": "assistant", "content": [thought, {"type": "text", "text": f"You said: {text}"}]}
    back = mirrored([*HELLO, turn, {"role": "user", "content": "go on"}])
    if NATIVE:
        equal(back["messages"][1]["content"][0], thought)
    else:
        equal([block.type for block in message.content], ["text"])
        assert "They said" not in json.dumps(back) and NATIVE_SIGNATURE not in json.dumps(back), back


@behaviour
def thinking_keeps_its_signature_or_is_dropped_cleanly():
    thinks(create("thinking", thinking={"type": "enabled", "budget_tokens": 1024}, extra_body={"max_tokens": 2000}), "hello there")


@behaviour
def thinking_keeps_its_signature_or_is_dropped_cleanly_streamed():
    events, message = stream("thinking", thinking={"type": "enabled", "budget_tokens": 1024}, extra_body={"max_tokens": 2000})
    equal(any(event.type == "thinking" for event in events), NATIVE)
    thinks(message, "hello there")


class Mirror(BaseModel):
    model: str


@behaviour
def structured_output_is_asked_for_and_parsed():
    answer = messages.parse(model=model("mirror"), messages=HELLO, max_tokens=1000, output_format=Mirror)
    equal(answer.parsed_output.model, f"{PROVIDER}-mock-mirror")
    request = json.loads(answer.content[0].text)
    schema = request["output_config"]["format"]["schema"] if NATIVE else request["response_format"]["json_schema"]["schema"]
    equal((schema["type"], schema["required"], schema["additionalProperties"]), ("object", ["model"], False))


@behaviour
def a_stop_sequence_ends_the_answer():
    answer = create("echo", [{"role": "user", "content": "one END two"}], stop_sequences=["END"])
    equal(answer.content[0].text, "You said: one ")
    # An OpenAI provider does not tell what ended it.
    equal((answer.stop_reason, answer.stop_sequence), ("stop_sequence", "END") if NATIVE else ("end_turn", None))


@behaviour
def an_answer_cut_at_the_limit_says_max_tokens():
    equal(create("length").stop_reason, "max_tokens")


@behaviour
def tokens_are_counted_by_the_provider_or_estimated():
    count = messages.count_tokens(model=model("echo"), messages=HELLO, system="Be brief.", tools=TOOLS)
    assert count.input_tokens == 4 if NATIVE else 50 < count.input_tokens < 500, count


@behaviour
def the_beta_client_counts_and_answers_too():
    count = client.beta.messages.count_tokens(model=model("echo"), messages=HELLO, betas=["token-counting-2024-11-01"])
    assert count.input_tokens >= 2, count
    answer = client.beta.messages.create(model=model("echo"), messages=HELLO, max_tokens=10, betas=["context-management-2025-06-27"])
    equal(answer.content[0].text, "You said: hello there")


def each_way(call):
    """Unary, and as a stream."""
    for streamed in (False, True):
        yield lambda **changes: list(call(**changes, stream=True)) if streamed else call(**changes)


def refused(kind, status, type_, code, name, sdk=client, turns=HELLO):
    for ask in each_way(lambda **more: create(name, turns, sdk=sdk, **more)):
        error = raises(kind, ask)
        equal((error.status_code, error.body["type"], error.body["error"]["type"]), (status, "error", type_))
        equal(error.body["error"].get("code"), code)
        assert error.response.headers["x-proxium-request-id"]
    return error


@behaviour
def a_bad_key_is_an_AuthenticationError():
    refused(anthropic.AuthenticationError, 401, "authentication_error", "invalid_key", "echo", client.with_options(api_key="px_nobody"))


@behaviour
def a_model_that_the_key_may_not_use_is_a_PermissionDeniedError():
    refused(anthropic.PermissionDeniedError, 403, "permission_error", "model_not_allowed", "echo", client.with_options(api_key=NARROW_KEY))


@behaviour
def an_unknown_model_is_a_NotFoundError():
    refused(anthropic.NotFoundError, 404, "not_found_error", "model_not_found", "none")


@behaviour
def a_bad_request_is_a_BadRequestError():
    refused(anthropic.BadRequestError, 400, "invalid_request_error", "invalid_request", "echo", turns=[])


@behaviour
def the_providers_own_400_is_a_BadRequestError():
    error = raises(anthropic.BadRequestError, lambda: create("error-400"))
    equal(error.body["type"], "error")
    raises(anthropic.BadRequestError, lambda: list(create("error-400", stream=True)))


@behaviour
def a_used_up_key_is_a_RateLimitError_with_its_headers():
    capped = client.with_options(api_key=CAPPED_KEY)
    create("echo", [{"role": "user", "content": "the only one"}], sdk=capped)
    error = refused(anthropic.RateLimitError, 429, "rate_limit_error", "tenant_capped", "echo", capped)
    equal((error.body["error"].get("param"), error.response.headers["x-ratelimit-remaining-requests"]), ("calls_per_hour", "0"))
    assert 0 < int(error.response.headers["retry-after"]) <= 3660, error.response.headers


@behaviour
def a_provider_at_its_limit_is_a_RateLimitError_and_then_rests():
    error = raises(anthropic.RateLimitError, lambda: create("error-429"))
    equal((error.body["error"]["code"], error.response.headers["retry-after"]), ("providers_failed", "1"))
    error = raises(anthropic.InternalServerError, lambda: create("error-429", stream=True))
    equal((error.status_code, error.body["error"]["code"]), (503, "providers_failed"))


@behaviour
def a_failing_provider_is_an_InternalServerError_502():
    refused(anthropic.InternalServerError, 502, "api_error", "providers_failed", "error-500")
    refused(anthropic.InternalServerError, 502, "api_error", "providers_failed", "error-529")
    refused(anthropic.InternalServerError, 502, "api_error", "providers_failed", "dead")


@behaviour
def the_retry_after_of_a_limit_is_honoured_by_max_retries():
    began = time.monotonic()
    equal(create("flaky", sdk=client.with_options(max_retries=2)).content[0].text, "You said: hello there")
    assert time.monotonic() - began >= 1


@behaviour
def a_timeout_of_the_client_is_an_APITimeoutError():
    for ask in each_way(lambda **more: create("hang", timeout=0.3, **more)):
        raises(anthropic.APITimeoutError, ask)


@behaviour
def a_deadline_is_an_InternalServerError_502():
    error = raises(anthropic.InternalServerError, lambda: create("hang", extra_headers={"x-proxium-timeout-ms": "300"}))
    equal((error.status_code, error.body["error"]["code"]), (502, "deadline_exceeded"))


def half(name, kind=anthropic.APIError):
    """The error of a broken stream, and what came before."""
    came = []

    def read():
        with messages.stream(model=model(name), messages=HELLO, max_tokens=1000) as events:
            came.extend(events.text_stream)

    error = raises(kind, read)
    return error, "".join(came)


@behaviour
def a_broken_stream_raises_after_what_came():
    error, came = half("closed")
    equal((came, error.body["error"]["type"]), ("Half", "api_error"))


@behaviour
def a_stream_that_is_cut_off_raises_after_what_came():
    # The body has no end: the SDKs hand on what their HTTP client says to that.
    _, came = half("cut", Exception)
    equal(came, "Half")


@behaviour
def an_error_in_a_stream_raises_after_what_came():
    error, came = half("failing")
    equal((came, error.body["error"]), ("Half", {"type": "overloaded_error", "message": "Overloaded"}))


run()
