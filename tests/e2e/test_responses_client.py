"""The official OpenAI client's responses: whole, streamed, tools, structured output, conversations."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import NotFoundError, OpenAI
from tests.support.patience import PATIENCE

MODEL = "smollm2-135m"
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}},
        "required": ["city"],
    },
    "strict": False,
}
FORM: Any = {
    "type": "json_schema",
    "name": "number",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    },
}
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0.0, "max_output_tokens": 64}


@pytest.fixture
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def test_a_stream_adds_up_to_the_whole(client: OpenAI) -> None:
    whole = client.responses.create(**ASKED, input="Say hello in exactly 3 words.")
    assert whole.status == "completed"
    assert whole.output_text
    with client.responses.stream(**ASKED, input="Say hello in exactly 3 words.") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens


def test_a_forced_call_and_a_conversation_that_goes_on(client: OpenAI) -> None:
    first = client.responses.create(
        **ASKED, input="What is the weather in Paris?", tools=[TOOL], tool_choice="required"
    )
    call = first.output[-1]
    assert call.type == "function_call"
    assert json.loads(call.arguments).keys() == {"city"}
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "Sunny, 25 °C",
    }
    second = client.responses.create(
        **ASKED, input=[result], previous_response_id=first.id, tools=[TOOL], tool_choice="none"
    )
    assert second.output_text
    assert second.previous_response_id == first.id
    (item,) = client.responses.input_items.list(second.id).data
    assert item.type == "function_call_output"
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(first.id)


def test_a_streamed_call(client: OpenAI) -> None:
    fields: dict[str, Any] = {"input": "Weather in Rome?", "tools": [TOOL]}
    fields["tool_choice"] = {"type": "function", "name": "get_weather"}
    whole = client.responses.create(**ASKED, **fields).output[-1]
    with client.responses.stream(**ASKED, **fields) as stream:
        call = stream.get_final_response().output[-1]
    assert call.type == whole.type == "function_call"
    assert (call.name, call.arguments) == (whole.name, whole.arguments)


def test_structured_output(client: OpenAI) -> None:
    made = client.responses.create(**ASKED, input="A number, please.", text={"format": FORM})
    assert json.loads(made.output_text).keys() == {"n"}


def test_logprobs(client: OpenAI) -> None:
    made = client.responses.create(**ASKED, input="Say hello.", top_logprobs=2)
    (part,) = made.output[0].content  # type: ignore[union-attr]
    assert part.type == "output_text"
    assert "".join(entry.token for entry in part.logprobs or ()).startswith(part.text)
    assert {len(entry.top_logprobs) for entry in part.logprobs or ()} == {2}


def test_in_the_background(client: OpenAI) -> None:
    made = client.responses.create(**ASKED, input="Say hello.", background=True)
    for _ in range(1000):
        if made.status != "in_progress":
            break
        made = client.responses.retrieve(made.id)
    assert made.status == "completed"
    assert made.output_text


def test_counting(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="Say hello.")
    made = client.responses.create(**ASKED, input="Say hello.")
    assert made.usage is not None
    assert made.usage.input_tokens == counted.input_tokens
