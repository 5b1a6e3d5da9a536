"""The official client calls tools of a real model of 135 million parameters: forced calls are always good."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from tests.support.patience import PATIENCE

jsonschema = pytest.importorskip("jsonschema")

MODEL = "smollm2-135m"
TEXT = {"type": "string", "maxLength": 24}
COUNT = {"type": "integer", "minimum": 0, "maximum": 99}

#: Twenty kinds of parameters.
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {"properties": {"city": TEXT, "unit": {"enum": ["C", "F"]}}, "required": ["city", "unit"]},
    "add": {"properties": {"a": COUNT, "b": COUNT}, "required": ["a", "b"]},
    "time_now": {},
    "no_parameters": {"properties": {}},
    "send_mail": {
        "properties": {"to": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}, "text": TEXT},
        "required": ["to", "text"],
    },
    "set_flag": {"properties": {"on": {"type": "boolean"}}, "required": ["on"]},
    "maybe": {"properties": {"x": {"type": ["string", "null"], "maxLength": 8}}, "required": ["x"]},
    "price": {"properties": {"amount": {"type": "number", "minimum": 0, "maximum": 10}}, "required": ["amount"]},
    "nested": {
        "properties": {"where": {"type": "object", "properties": {"lat": COUNT, "lon": COUNT}, "required": ["lat", "lon"]}},
        "required": ["where"],
    },
    "either": {"properties": {"key": {"anyOf": [COUNT, TEXT]}}, "required": ["key"]},
    "date": {"properties": {"day": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}}, "required": ["day"]},
    "constant": {"properties": {"kind": {"const": "fixed"}}, "required": ["kind"]},
    "reference": {
        "properties": {"p": {"$ref": "#/$defs/point"}},
        "required": ["p"],
        "$defs": {"point": {"type": "object", "properties": {"x": COUNT}, "required": ["x"]}},
    },
    "matrix": {
        "properties": {"rows": {"type": "array", "items": {"type": "array", "items": COUNT, "maxItems": 2}, "maxItems": 2}},
        "required": ["rows"],
    },
    "optional_only": {"properties": {"a": COUNT, "b": {"type": "boolean"}}},
    "measure": {"properties": {"größe": COUNT}, "required": ["größe"]},
    "search-web": {"properties": {"query": TEXT, "limit": COUNT}, "required": ["query"]},
    "fs.read": {"properties": {"path": TEXT}, "required": ["path"]},
    "order": {
        "properties": {
            "items": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {"type": "object", "properties": {"sku": TEXT, "n": COUNT}, "required": ["sku", "n"]},
            }
        },
        "required": ["items"],
    },
    "levels": {"properties": {"level": {"type": "integer", "enum": [1, 2, 3]}, "why": TEXT}, "required": ["level", "why"]},
}  # fmt: skip


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", **SCHEMAS[name]} if SCHEMAS[name] else None
    function = {"name": name, "description": f"Do {name}.", "parameters": parameters}
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


ALL = [tool(name) for name in SCHEMAS]


@pytest.fixture
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def check(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), {"type": "object", **SCHEMAS[name]})


def streamed(client: OpenAI, **fields: Any) -> tuple[list[tuple[str, str]], str]:
    """(name, arguments) of each call, and the finish reason."""
    calls: list[list[str]] = []
    finish = ""
    with client.chat.completions.create(model=MODEL, stream=True, **fields) as stream:
        for chunk in stream:
            (choice,) = chunk.choices
            assert not choice.delta.content
            for piece in choice.delta.tool_calls or ():
                if piece.id:
                    calls.append([piece.function.name, ""])
                    assert piece.index == len(calls) - 1
                calls[piece.index][1] += piece.function.arguments or ""
            finish = choice.finish_reason or finish
    return [(name, arguments) for name, arguments in calls], finish


def test_twenty_tools_are_twenty() -> None:
    assert len(SCHEMAS) == 20


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_named_call_fulfils_its_schema(client: OpenAI, name: str) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Please do it, whatever it is, for Paris."}],
        "tools": [tool(name), tool("add" if name != "add" else "price")],
        "tool_choice": {"type": "function", "function": {"name": name}},
        "max_tokens": 256,
        "temperature": 1.0,
        "seed": 3,
    }
    (choice,) = client.chat.completions.create(model=MODEL, **fields).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.function.name == name
    check(name, call.function.arguments)
    assert streamed(client, **fields) == ([(name, call.function.arguments)], "tool_calls")


@pytest.mark.parametrize("seed", range(2))
def test_required_calls_fulfil_their_schemas(client: OpenAI, seed: int) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Add 2 and 3, then tell me the weather in Rome."}],
        "tools": ALL,
        "tool_choice": "required",
        "max_tokens": 600,
        "temperature": 1.0,
        "seed": seed,
    }
    (choice,) = client.chat.completions.create(model=MODEL, **fields).choices
    calls = choice.message.tool_calls or ()
    assert calls
    for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
        check(call.function.name, call.function.arguments)
    assert len({call.id for call in calls}) == len(calls)
    told, finish = streamed(client, **fields)
    assert finish == choice.finish_reason
    assert told == [(call.function.name, call.function.arguments) for call in calls]


def test_auto_never_fails(client: OpenAI) -> None:
    for question in ("Hello!", "What is the weather in Rome? Use get_weather."):
        (choice,) = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            tools=ALL[:2],
            max_tokens=60,
            temperature=0,
        ).choices
        assert choice.message.content or choice.message.tool_calls


def test_a_strict_tool_is_called_well_in_free_text(client: OpenAI) -> None:
    strict = tool("get_weather")
    strict["function"]["strict"] = True
    question = 'Answer only with <tool_call>[{"name": "get_weather", "arguments": {}}]</tool_call>.'
    for seed in range(2):
        (choice,) = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            tools=[strict],
            max_tokens=120,
            temperature=1.0,
            seed=seed,
        ).choices
        for call in choice.message.tool_calls or ():
            check("get_weather", call.function.arguments)
        if choice.finish_reason != "length":
            assert "<tool_call>" not in (choice.message.content or "")
