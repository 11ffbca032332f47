"""PyPI openai and anthropic as clients of the other endpoints; MODEL is asked for responses, native or translated."""

import os

import openai
from anthropic import Anthropic
from behaviours import BASE_URL, CAPPED_KEY, KEY, NARROW_KEY, PNG, behaviour, equal, raises, run
from openai import OpenAI

MODEL = os.environ["MODEL"]
NATIVE = MODEL == "respond"
client = OpenAI(base_url=f"{BASE_URL}/v1", api_key=KEY, max_retries=0)
capped = OpenAI(base_url=f"{BASE_URL}/v1", api_key=CAPPED_KEY, max_retries=0)
narrow = OpenAI(base_url=f"{BASE_URL}/v1", api_key=NARROW_KEY, max_retries=0)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "A tool.",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
}
ORDER = 'call weather {"city": "Paris"}'


def ask(text="hello there", sdk=client, **more):
    return sdk.responses.create(model=MODEL, input=text, **more)


@behaviour
def models_are_listed_and_retrieved():
    listed = {model.id: model for model in client.models.list()}
    assert {"embed", "e1", "respond", "m1"} <= set(listed), listed
    equal(client.models.retrieve("e1").owned_by, "first")
    equal([model.id for model in narrow.models.list()], ["moderate", "o1"])
    raises(openai.NotFoundError, lambda: narrow.models.retrieve("e1"))


@behaviour
def models_are_listed_page_by_page_in_anthropics_dialect():
    anthropic = Anthropic(base_url=BASE_URL, api_key=KEY, max_retries=0)
    equal([model.id for model in anthropic.models.list(limit=4)], [model.id for model in client.models.list()])
    told = anthropic.models.retrieve("m1")
    equal((told.id, told.type, told.display_name, told.lifecycle, told.max_tokens), ("m1", "model", "m1", "active", 1000))


@behaviour
def embeddings_come_as_the_sdk_asks_for_them():
    packed = client.embeddings.create(model="embed", input="hello there")  # base64 on the wire
    plain = client.embeddings.create(model="embed", input="hello there", encoding_format="float")
    equal(len(packed.data[0].embedding), 8)
    assert all(abs(a - b) < 1e-6 for a, b in zip(packed.data[0].embedding, plain.data[0].embedding))
    many = client.embeddings.create(model="embed", input=["a", "b c"], dimensions=4)
    equal(([len(item.embedding) for item in many.data], many.usage.prompt_tokens), ([4, 4], 3))
    equal(client.embeddings.create(model="embed", input=[[1, 2], [3]]).usage.total_tokens, 3)


@behaviour
def moderations_need_no_model():
    # No catalog model bears the API's own default name here.
    raises(openai.NotFoundError, lambda: client.moderations.create(input="x"))
    told = client.moderations.with_raw_response.create(model="moderate", input=["a hug", "harm"])
    equal([result.flagged for result in told.parse().results], [False, True])
    equal(told.headers["x-proxium-cost-usd"], "0")


@behaviour
def a_rerank_is_a_plain_call():
    body = {"model": "rank", "query": "cat", "documents": ["a dog", "a cat"], "top_n": 1}
    told = client.post("/rerank", body=body, cast_to=object)
    equal([result["index"] for result in told["results"]], [1])


@behaviour
def a_response_is_answered_with_usage():
    answer = ask(instructions="Be brief.")
    equal((answer.output_text, answer.status, answer.object), ("You said: hello there", "completed", "response"))
    equal((answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens), (4, 4, 8))
    assert answer.id.startswith("resp_") and answer.error is None and answer.tools == []


@behaviour
def parts_of_text_and_images_are_carried():
    content = [{"type": "input_text", "text": "hello there"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]
    equal(ask([{"role": "user", "content": content}]).output_text, "You said: hello there")


@behaviour
def a_tool_is_called_and_its_result_is_taken():
    first = ask(ORDER, tools=[WEATHER])
    calls = [item for item in first.output if item.type == "function_call"]
    equal([(call.name, call.arguments) for call in calls], [("weather", '{"city": "Paris"}')] if NATIVE else [(calls[0].name, calls[0].arguments)])
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "rain"}
    history = [{"role": "user", "content": ORDER}, *(item.to_dict() for item in first.output), result]
    equal(ask(history, tools=[WEATHER]).output_text, "Results: rain")


@behaviour
def a_stream_has_its_events_and_the_whole_at_its_end():
    events = list(ask(stream=True))
    kinds = [event.type for event in events]
    equal((kinds[0], kinds[-1]), ("response.created", "response.completed"))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), "You said: hello there")
    equal([event.sequence_number for event in events], list(range(len(events))))
    whole = events[-1].response
    equal((whole.output_text, whole.usage.input_tokens, whole.usage.output_tokens), ("You said: hello there", 2, 4))


@behaviour
def the_sdks_own_stream_gathers_tool_calls():
    with client.responses.stream(model=MODEL, input=ORDER, tools=[WEATHER]) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
        whole = stream.get_final_response()
    equal(len(done), 1)
    assert [item.name for item in whole.output if item.type == "function_call"] == ["weather"], whole.output


@behaviour
def a_response_is_gone_on_from_or_the_member_is_named():
    first = ask()
    if NATIVE:
        second = ask("again", previous_response_id=first.id)
        equal(second.previous_response_id, first.id)
        streamed = list(ask("again", previous_response_id=second.id, stream=True))[-1].response
        equal(ask("and again", previous_response_id=streamed.id).status, "completed")
        error = raises(openai.NotFoundError, lambda: ask(previous_response_id="resp_nobodys"))
        equal((error.code, error.param), ("response_not_found", "previous_response_id"))
    else:
        equal(raises(openai.NotFoundError, lambda: ask(previous_response_id=first.id)).param, "previous_response_id")


@behaviour
def what_another_project_could_have_stored_is_refused_by_name():
    file = [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]
    for more, param in [
        ({"text": file}, "input[0].content[0].file_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
    ]:
        equal(raises(openai.BadRequestError, lambda: ask(**more)).param, param)


@behaviour
def a_capped_key_is_refused_everywhere():
    for call in [
        lambda: capped.embeddings.create(model="embed", input="x"),
        lambda: capped.moderations.create(model="moderate", input="x"),
        lambda: ask(sdk=capped),
        lambda: list(ask(sdk=capped, stream=True)),
        lambda: capped.post("/rerank", body={"model": "rank", "query": "x", "documents": ["x"]}, cast_to=object),
    ]:
        equal(raises(openai.RateLimitError, call).code, "tenant_capped")


run()
