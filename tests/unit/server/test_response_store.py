"""The store of responses: its owners, its bounds in number, bytes and time."""

import random

import pytest
from tests.support.fake_clock import FakeClock

from headrace.api.responses import (
    InputItem,
    InputText,
    OutputMessage,
    OutputText,
    ReasoningOptions,
    Response,
    TextOptionsField,
)
from headrace.server.response_store import ResponseStore

ME, YOU = b"me", b"you"


def response(name, text="hello"):
    said = OutputMessage(id=f"msg_{name}", status="completed", content=[OutputText(text)])
    return Response(
        id=name, created_at=0, status="completed", background=False, instructions=None,
        max_output_tokens=None, max_tool_calls=None, metadata={}, model="m", output=[said],
        parallel_tool_calls=True, presence_penalty=0.0, frequency_penalty=0.0,
        previous_response_id=None, prompt_cache_key=None, reasoning=ReasoningOptions(),
        safety_identifier=None, store=True, temperature=1.0, text=TextOptionsField(),
        tool_choice="auto", tools=[], top_logprobs=0, top_p=1.0,
    )  # fmt: skip


def item(name):
    return InputItem(type="message", id=name, role="user", content=[InputText(name)])


@pytest.fixture
def clock():
    return FakeClock()


def store(clock, *, most=10, size=1 << 20, ttl=60.0):
    return ResponseStore(clock, max_responses=most, max_bytes=size, ttl=ttl)


def test_a_conversation_and_its_items(clock):
    kept = store(clock)
    kept.put(ME, response("a"), [item("x")], [item("y"), item("z")])
    found = kept.get(ME, "a")
    assert [i.id for i in found.conversation()] == ["x", "y", "z", "msg_a"]
    assert [i.id for i in found.own_items()] == ["y", "z"]
    assert kept.find_item(ME, "msg_a").content[0].text == "hello"
    assert kept.find_item(ME, "y") is None
    assert b'"id":"a"' in found.body


def test_nobody_else_sees_it(clock):
    kept = store(clock)
    kept.put(ME, response("a"), [], [])
    assert kept.get(YOU, "a") is None
    assert kept.find_item(YOU, "msg_a") is None
    assert kept.delete(YOU, "a") is False
    assert kept.delete(ME, "a") is True
    assert kept.get(ME, "a") is None
    assert kept.find_item(ME, "msg_a") is None
    assert (kept.num_responses, kept.num_bytes) == (0, 0)


def test_time(clock):
    kept = store(clock, ttl=60.0)
    kept.put(ME, response("a"), [], [])
    clock.advance(59.0)
    kept.put(YOU, response("b"), [], [])
    assert kept.get(ME, "a") is not None
    clock.advance(1.0)
    assert kept.get(ME, "a") is None
    assert kept.find_item(ME, "msg_a") is None
    assert kept.num_responses == 1


def test_the_key_that_has_most_gives_up_its_oldest(clock):
    kept = store(clock, most=3)
    kept.put(YOU, response("y"), [], [])
    for name in "abc":
        kept.put(ME, response(name), [], [])
    assert kept.get(YOU, "y") is not None
    assert [kept.get(ME, name) is not None for name in "abc"] == [False, True, True]


def test_one_that_is_too_large_pushes_nothing_out(clock):
    kept = store(clock, size=4000)
    kept.put(ME, response("a"), [], [])
    kept.put(ME, response("b", text="x" * 4000), [], [])
    assert kept.get(ME, "a") is not None
    assert kept.get(ME, "b") is None


def test_a_closed_store_keeps_nothing(clock):
    kept = store(clock, most=0)
    assert not kept.is_open
    kept.put(ME, response("a"), [], [])
    assert kept.num_responses == 0


@pytest.mark.parametrize("seed", range(5))
def test_bounds_hold_whatever_comes(clock, seed):
    rng = random.Random(seed)
    kept = store(clock, most=8, size=20_000, ttl=30.0)
    for number in range(300):
        owner = rng.choice([ME, YOU, b"third"])
        kept.put(owner, response(f"r{number}", text="x" * rng.randrange(6000)), [], [])
        if rng.random() < 0.3:
            kept.delete(owner, f"r{number - rng.randrange(5)}")
        clock.advance(rng.random() * 5)
        assert kept.num_responses <= 8
        assert kept.num_bytes <= 20_000
        names = [f"r{n}" for n in range(number + 1)]
        found = [kept.get(who, name) for who in (ME, YOU, b"third") for name in names]
        assert kept.num_bytes == sum(stored.num_bytes for stored in found if stored)
        assert kept.num_responses == sum(stored is not None for stored in found)
    clock.advance(31.0)
    assert kept.get(ME, "r299") is None
    assert (kept.num_responses, kept.num_bytes) == (0, 0)
