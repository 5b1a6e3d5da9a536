"""Prompts' tokens, asked of replicas: remembered, bounded, done without."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.fake_clock import FakeClock

from headrace.fleet.gateway.prefix.tokenizing import Tokenizing


class Replica:
    def __init__(self, answer: bytes | None = b'{"tokens": [1, 2, 3]}') -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def ask(self, replica_id: str, body: bytes) -> bytes | None:
        self.asked.append((replica_id, msgspec.json.decode(body)))
        return self.answer


def make(replica: Replica, **settings: Any) -> tuple[Tokenizing, FakeClock]:
    clock = FakeClock()
    return Tokenizing(replica.ask, clock, **settings), clock


CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 1, "tools": [{}]}


async def test_a_chat_is_asked_with_what_its_tokens_depend_on() -> None:
    replica = Replica()
    tokenizing, _ = make(replica)
    assert list(await tokenizing.token_ids(CHAT, "m", "r") or []) == [1, 2, 3]
    assert replica.asked == [("r", {"model": "m", "messages": CHAT["messages"], "tools": [{}]})]


async def test_what_is_known_is_not_asked_again() -> None:
    replica = Replica()
    tokenizing, _ = make(replica)
    for _ in range(3):
        await tokenizing.token_ids({**CHAT, "temperature": 0}, "m", "r")
    assert len(replica.asked) == 1
    await tokenizing.token_ids(CHAT, "other", "r")
    assert len(replica.asked) == 2


async def test_prompts() -> None:
    replica = Replica()
    tokenizing, _ = make(replica)
    assert await tokenizing.token_ids({"prompt": "x", "add_special_tokens": False}, "m", "r")
    assert replica.asked[0][1] == {"model": "m", "prompt": "x", "add_special_tokens": False}
    assert list(await tokenizing.token_ids({"prompt": [7, 8]}, "m", "r") or []) == [7, 8]
    assert len(replica.asked) == 1
    for body in ({}, {"prompt": ["a", "b"]}, {"prompt": [-1]}, {"prompt": [2**40]}, {"input": "x"}):
        assert await tokenizing.token_ids(body, "m", "r") is None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b'{"tokens": []}',
        b'{"tokens": 5}',
        b'{"tokens": ["a"]}',
        b'{"tokens": [-1]}',
        b"\xff",
    ],
)
async def test_a_bad_answer_is_none(answer: bytes | None) -> None:
    tokenizing, _ = make(Replica(answer))
    assert await tokenizing.token_ids(CHAT, "m", "r") is None
    assert tokenizing.num_bytes == 0


async def test_failures_are_given_a_rest() -> None:
    replica = Replica(None)
    tokenizing, clock = make(replica)
    for _ in range(10):
        assert await tokenizing.token_ids(CHAT, "m", "r") is None
    assert len(replica.asked) == 3
    clock.advance(11)
    replica.answer = b'{"tokens": [5]}'
    assert list(await tokenizing.token_ids(CHAT, "m", "r") or []) == [5]


async def test_a_slow_one_is_done_without() -> None:
    async def never(replica_id: str, body: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    tokenizing = Tokenizing(never, FakeClock(), patience=0.01)
    assert await tokenizing.token_ids(CHAT, "m", "r") is None


async def test_memory_is_bounded_over_100_000_prompts() -> None:
    replica = Replica(msgspec.json.encode({"tokens": list(range(50))}))
    tokenizing, _ = make(replica, max_bytes=100_000)
    for number in range(100_000):
        await tokenizing.token_ids({"prompt": f"{number}"}, "m", "r")
        replica.asked.clear()
    assert tokenizing.num_bytes <= 100_000
    assert len(tokenizing._known) <= 250
    await tokenizing.token_ids({"prompt": "99999"}, "m", "r")
    assert replica.asked == []
