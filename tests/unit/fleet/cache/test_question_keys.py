import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.cache.keys import digest, question

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "2+2?"}], "temperature": 0}


def key(body: dict[str, Any], **other: Any) -> bytes:
    fields = {"path": CHAT, "tenant": "t", "model": "m", **other}
    asked = question(body=body, **fields)
    assert asked is not None
    return asked.key


@pytest.mark.parametrize(
    "other",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"model": "alias"},
        {"request_id": "r", "priority": 3},
        {"top_p": None, "tools": None},
        {"temperature": 0.0},
    ],
)
def test_what_changes_nothing_of_the_answer_does_not_count(other: dict[str, Any]) -> None:
    assert key({**BODY, **other}) == key(BODY)


def test_order_and_spaces_do_not_count() -> None:
    spaced = b'{ "temperature" : 0 , "messages":[{"content":"2+2?","role":"user"}]}'
    asked = question(path=CHAT, body=json.loads(spaced), tenant="t", model="m")
    assert asked is not None
    assert asked.key == key(BODY)


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.5}, {"seed": 1}, {"max_tokens": 5}, {"n": 2}, {"stop": ["x"]}, {"top_k": 1},
        {"messages": [{"role": "user", "content": "2+3?"}]},
        {"messages": [{"role": "system", "content": "2+2?"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}}, {"logprobs": True}, {"a_field_of_tomorrow": 1},
    ],
)  # fmt: skip
def test_everything_else_does(other: dict[str, Any]) -> None:
    assert key({**BODY, **other}) != key(BODY)


def test_tenants_models_paths_and_namespaces_are_apart() -> None:
    others: list[dict[str, Any]] = [
        {"tenant": "u"}, {"model": "n"}, {"version": "2"}, {"path": "/v1/completions"}, {"namespace": "2"},
        {"tenant": "tm", "model": ""}, {"tenant": "", "model": "tm"},
    ]  # fmt: skip
    keys = {key(BODY), *(key(BODY, **other) for other in others)}
    assert len(keys) == len(others) + 1


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digests_differ_where_parts_do(one: list[bytes], other: list[bytes]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": False}, False),
        ({"temperature": 0.1}, False),
        ({"temperature": 1, "seed": 7}, True),
        ({"seed": True}, False),
        ({"seed": -1}, False),
        ({"top_k": 1}, True),
        ({"top_k": True}, False),
        ({"top_k": 2}, False),
        ({"seed": 1, "web_search_options": {}}, False),
        ({"seed": 1, "web_search_options": None}, True),
        ({"temperature": 0, "tools": [{"type": "web_search"}]}, False),
        ({"temperature": 0, "tools": [{"type": "function"}, {"type": ["mcp"]}]}, False),
        ({"temperature": 0, "tools": [{"type": "function"}, {"type": "custom"}, {}, 3]}, True),
        ({"temperature": 0, "tools": {"type": "mcp"}}, True),
    ],
)
def test_which_requests_leave_nothing_to_chance(fields: dict[str, Any], wanted: bool) -> None:
    asked = question(path=CHAT, body=fields, tenant="", model="m")
    assert asked is not None
    assert asked.is_deterministic is wanted


def test_vectors_are_computed() -> None:
    asked = question(path="/v1/embeddings", body={"input": "x"}, tenant="", model="m")
    assert asked is not None
    assert asked.is_deterministic


def test_other_routes_are_not_cached() -> None:
    assert question(path="/v1/responses", body={}, tenant="", model="m") is None


def test_flights_tell_streams_and_usage_apart() -> None:
    options = {"include_usage": True}
    bodies = [BODY, {**BODY, "stream": True}, {**BODY, "stream": True, "stream_options": options}]
    found = [question(path=CHAT, body=b, tenant="", model="m") for b in bodies]
    assert len({asked.flight_key for asked in found if asked}) == 3
    assert len({asked.key for asked in found if asked}) == 1


@pytest.mark.parametrize("field", ["cache_salt", "kv_transfer_params", "bootstrap_room"])
def test_who_asks_to_be_kept_apart_is(field: str) -> None:
    assert key({**BODY, field: "mine"}) != key(BODY)
    assert key({**BODY, field: "mine"}) != key({**BODY, field: "yours"})


def test_flights_tell_all_options_of_streams_apart() -> None:
    options = [
        None,
        {"include_usage": True},
        {"include_usage": True, "continuous_usage_stats": True},
    ]
    found = [
        question(
            path=CHAT, body={**BODY, "stream": True, "stream_options": o}, tenant="t", model="m"
        )
        for o in options
    ]
    assert len({asked.flight_key for asked in found if asked}) == 3
