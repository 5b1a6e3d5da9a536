import asyncio
import threading

import pytest
from tests.support.tiny_tokenizers import byte_level_tokenizer

from headrace.core.errors import OverloadedError
from headrace.preprocess.workers import INLINE_SIZE, Workers

LARGE = INLINE_SIZE + 1


@pytest.fixture
def workers():
    pool = Workers(2, max_waiting=1)
    yield pool
    pool.close()


async def test_small_work_is_done_here_and_large_work_on_a_thread(workers):
    here = threading.get_ident()
    assert await workers.run(INLINE_SIZE, threading.get_ident) == here
    assert await workers.run(LARGE, threading.get_ident) != here


async def test_results_and_errors_come_back(workers):
    assert await workers.run(LARGE, int, "12", base=3) == 5
    for size in (0, LARGE):
        with pytest.raises(ValueError, match="invalid literal"):
            await workers.run(size, int, "x")
    assert workers.pending == 0


async def test_the_pool_is_bounded(workers):
    gate = threading.Event()
    calls = [asyncio.ensure_future(workers.run(LARGE, gate.wait, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    assert workers.pending == 3
    with pytest.raises(OverloadedError):
        await workers.run(LARGE, gate.wait)
    # What is small needs no thread, so it is never refused.
    assert await workers.run(1, int, "1") == 1
    gate.set()
    assert await asyncio.gather(*calls) == [True] * 3
    assert workers.pending == 0


async def test_a_caller_that_goes_away_gives_its_place_back(workers):
    gate = threading.Event()
    running = [asyncio.ensure_future(workers.run(LARGE, gate.wait, 60)) for _ in range(2)]
    waiting = asyncio.ensure_future(workers.run(LARGE, gate.wait, 60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert workers.pending == 2
    gate.set()
    await asyncio.gather(*running)


async def test_the_loop_turns_while_a_long_text_is_tokenised(workers):
    """Tokenising must let go of the interpreter's lock: `tokenizers.Tokenizer.encode` does not."""
    tokenizer = byte_level_tokenizer()
    text = "hello world " * 60_000
    call = asyncio.ensure_future(workers.run(LARGE, tokenizer.encode, text))
    turns = 0
    while not call.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert len(call.result()) > 100_000
    # Holding the lock would let one or two turns through.
    assert turns > 10
