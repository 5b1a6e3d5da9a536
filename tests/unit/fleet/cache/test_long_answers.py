"""What is long is not read on the event loop."""

import threading

import pytest
from tests.support.answer_stores import DictStore
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.cache import CacheConfig
from headrace.fleet.cache import front
from headrace.fleet.cache.answers import Answer, pack, unpack
from headrace.observe.metrics import Metrics


@pytest.mark.parametrize("is_long", [False, True])
async def test_long_answers_are_read_in_a_thread(
    is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"role": "assistant", "content": "x" * (100_000 if is_long else 10)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    kept = Answer(path="/v1/chat/completions", stored_at=0.0, whole={"choices": [choice]})
    store = DictStore()
    await store.put(b"k", pack(kept), 60.0)
    threads: list[int] = []

    def noted(stored: bytes) -> Answer | None:
        threads.append(threading.get_ident())
        return unpack(stored)

    monkeypatch.setattr(front, "unpack", noted)
    cache = front.ResponseCache(CacheConfig(enabled=True), store, FakeClock(), Metrics())
    assert await cache.find(b"k") == kept
    assert (threads != [threading.get_ident()]) is is_long
