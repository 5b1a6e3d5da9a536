"""Anthropic's official client: chat, stream, tools, typed output, counting and errors. HEADRACE_URL says where the server is."""

import os
from typing import Literal

import anthropic
import pytest
from anthropic import Anthropic
from pydantic import BaseModel, Field

MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "Rome has three million inhabitants."}]
TOOL = {
    "name": "find_place",
    "description": "Find a place.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "people": {"type": "integer", "minimum": 0, "maximum": 50_000_000},
        },
        "required": ["city", "people"],
        "additionalProperties": False,
    },
}
FIELDS = {
    "model": MODEL,
    "messages": ASK,
    "max_tokens": 100,
    "extra_body": {"temperature": 0, "seed": 1},
}


class Place(BaseModel):
    """A city and how many live there."""

    city: str = Field(max_length=30)
    people: int = Field(ge=0, le=50_000_000)


class Kind(BaseModel):
    """What a place is. The client sends no bounds of numbers and texts, so there are none."""

    kind: Literal["city", "village", "river"]
    is_large: bool


def chat(client: Anthropic) -> None:
    whole = client.messages.create(**FIELDS, system="Answer in one sentence.")
    (block,) = whole.content
    assert block.type == "text"
    assert block.text
    assert whole.stop_reason in {"end_turn", "max_tokens"}
    with client.messages.stream(**FIELDS, system="Answer in one sentence.") as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 2
    assert "".join(pieces) == block.text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    count = client.messages.count_tokens(
        model=MODEL, messages=ASK, system="Answer in one sentence."
    )
    usage = whole.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    stop = block.text[5:9]
    cut = client.messages.create(**FIELDS, system="Answer in one sentence.", stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == block.text[: block.text.index(stop)]


def tools(client: Anthropic) -> None:
    forced = {"type": "tool", "name": "find_place", "disable_parallel_tool_use": True}
    whole = client.messages.create(**FIELDS, tools=[TOOL], tool_choice=forced)
    (call,) = whole.content
    assert (whole.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "find_place")
    Place.model_validate(call.input)
    with client.messages.stream(**FIELDS, tools=[TOOL], tool_choice=forced) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].input == call.input
    assert "input_json" in kinds
    answer = [
        *ASK,
        {"role": "assistant", "content": whole.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Found."}],
        },
    ]
    told = client.messages.create(**{**FIELDS, "messages": answer}, tools=[TOOL])
    assert told.content


def typed(client: Anthropic) -> None:
    parsed = client.messages.parse(**FIELDS, output_format=Kind)
    assert isinstance(parsed.parsed_output, Kind)


def errors(client: Anthropic) -> None:
    for change, kind in (
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"model": "claude"}, anthropic.NotFoundError),
    ):
        with pytest.raises(kind) as error:
            client.messages.create(**{**FIELDS, **change})
        assert error.value.body["type"] == "error"


if __name__ == "__main__":
    with Anthropic(
        base_url=os.environ["HEADRACE_URL"], api_key="none", max_retries=0, timeout=60
    ) as client:
        for part in (chat, tools, typed, errors):
            part(client)
