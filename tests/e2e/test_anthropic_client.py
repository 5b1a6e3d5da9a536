"""The official Anthropic client, whole and streamed: chat, tools, structured output, counting, errors."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError, NotFoundError
from tests.support.patience import PATIENCE

MODEL = "smollm2-135m"
#: The client knows no temperature for models of today; servers do.
GREEDY = {"temperature": 0.0}
HELLO: list[Any] = [{"role": "user", "content": "Say hello in exactly 3 words."}]
TOOL: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}},
        "required": ["city"],
    },
}
FORM: Any = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture
def client(server: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=server, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def test_a_message(client: Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=64, messages=HELLO, system="Be brief.")
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 1
    assert message._request_id


def test_a_stream_adds_up(client: Anthropic) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 32, "messages": HELLO}
    fields |= {"stop_sequences": ["\n\n\n"], "extra_body": GREEDY}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert [block.type for block in final.content] == ["text"]
    assert stream.get_final_text() == text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_forced_call_and_its_result(client: Anthropic, choice: Any) -> None:
    question: Any = {"role": "user", "content": "What is the weather in Paris?"}
    fields: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 128,
        "tools": [TOOL],
        "extra_body": GREEDY,
    }
    forced = {**fields, "messages": [question], "tool_choice": choice}
    message = client.messages.create(**forced)
    call = message.content[-1]
    assert call.type == "tool_use"
    assert message.stop_reason == "tool_use"
    assert call.input.keys() == {"city"}
    with client.messages.stream(**forced) as stream:
        again = stream.get_final_message().content[-1]
    assert again.type == "tool_use"
    assert (again.name, again.input) == (call.name, call.input)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 25 °C"}
    said: Any = {"role": "assistant", "content": [block.model_dump() for block in message.content]}
    turns = [question, said, {"role": "user", "content": [result]}]
    answer = client.messages.create(**fields, messages=turns, tool_choice={"type": "none"})
    assert answer.content[0].type == "text"


def test_structured_output(client: Anthropic) -> None:
    message = client.messages.create(
        model=MODEL,
        max_tokens=64,
        messages=[{"role": "user", "content": "A number, please."}],
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": FORM}}},
    )
    assert json.loads(message.content[0].text).keys() == {"n"}  # type: ignore[union-attr]


def test_counting_is_exact(client: Anthropic) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
    usage = client.messages.create(
        model=MODEL, max_tokens=1, messages=HELLO, system="Be brief."
    ).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_turn_is_continued(client: Anthropic) -> None:
    turns = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    message = client.messages.create(
        model=MODEL,
        max_tokens=8,
        messages=turns,  # type: ignore[arg-type]
        extra_body=GREEDY,
    )
    assert message.content[0].text.startswith(" Paris")  # type: ignore[union-attr]


def test_errors_are_what_the_client_knows(client: Anthropic) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.messages.create(model="claude-nowhere", max_tokens=5, messages=HELLO)
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    with pytest.raises(BadRequestError, match="text only"):
        client.messages.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": [image]}]
        )
