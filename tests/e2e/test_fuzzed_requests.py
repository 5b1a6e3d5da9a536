"""2,000 requests that no client should send, over all endpoints and real sockets: nothing breaks, nothing leaks."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.processes import counters, resident, settle, tree, until
from tests.support.tiny_models import make_tiny_llama
from tests.support.wire_fuzz import Answer, Fuzz, send

from headrace.cli.local_server import local_server

MIB = 1 << 20
NUM_WARM, NUM_MORE = 800, 1200
AT_ONCE = 16


def say(url: str) -> list[tuple[str, float]]:
    """A greedy answer of the server, to the last bit."""
    body: dict[str, Any] = {
        "prompt": "The rain in Spain",
        "max_tokens": 20,
        "temperature": 0,
        "logprobs": 1,
    }
    body["guided_regex"] = "[a-z ]{0,20}"
    logprobs = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["logprobs"]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))


def try_grammar(url: str, number: int) -> None:
    """One that nobody has asked for: the process that tries them out is there afterwards, whatever became of it before."""
    body = {"prompt": "The", "max_tokens": 1, "guided_regex": f"yes|no {number}"}
    assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200


def num_files(pid: int) -> int:
    """Files that the processes have open."""
    return sum(process.num_fds() for process in tree(pid))


def fill_cache(url: str, rng: random.Random) -> None:
    """Use every block once: memory for keys and values is taken when it is first written, within its bound."""
    report = settle(url)
    assert report["kv_blocks_total"] <= 512, "more blocks than a test can fill"
    for _ in range(report["kv_blocks_total"] // 16 + 1):
        prompt = [rng.randrange(3, 250) for _ in range(300)]  # 18 blocks, and some more
        body = {"prompt": prompt, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).status_code == 200


def document(url: str) -> dict[str, Any]:
    """What the server says that it can do."""
    found: dict[str, Any] = httpx.get(f"{url}/openapi.json").json()
    return found


async def send_all(port: int, requests: list[bytes]) -> list[tuple[bytes, Answer]]:
    """Every request with its answer, some at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(request: bytes) -> tuple[bytes, Answer]:
        async with room:
            return request, await send(port, request)

    return await asyncio.gather(*map(one, requests))


def check(answers: list[tuple[bytes, Answer]]) -> Counter[int | None]:
    """No fault of the server's, whole or in a stream."""
    for request, answer in answers:
        told = f"{request[:1500]!r}\n{answer.status} {answer.body[:1500]!r}"
        assert answer.status is None or answer.status < 500, told
        assert b'"server_error"' not in answer.body, told
        # A request to abort everything cancels what else runs, which is no fault.
        assert b'"api_error"' not in answer.body or b"was cancelled" in answer.body, told
    return Counter(answer.status for _, answer in answers)


async def run(
    model: str, *options: str, growth: int, seed: int, kv_memory: str, warm: int = NUM_WARM
) -> None:
    """`growth` is how many bytes the server's processes may grow by over the last 1,200 requests."""
    rng = random.Random(seed)
    options = (*options, "--read-timeout", "5", "--grammar-processes", "1")
    options = (*options, "--max-stored-bytes", "256KiB")  # what is kept is no leak
    options = (*options, "--kv-memory", kv_memory)
    with local_server([model, *options], ready_timeout=PATIENCE) as server:
        port = urlsplit(server.url).port
        assert port is not None
        before = say(server.url)
        fill_cache(server.url, rng)
        fuzz = Fuzz(document(server.url), rng)
        statuses: Counter[int | None] = Counter()
        seen = []
        for count in (warm, NUM_MORE):
            statuses += check(await send_all(port, [fuzz.request() for _ in range(count)]))
            report = settle(server.url)
            assert report["kv_blocks_used"] == 0
            assert say(server.url) == before
            try_grammar(server.url, count)
            settle(server.url)
            if seen:  # a connection that was closed is gone soon
                until(lambda: num_files(server.pid) <= seen[0][1], "files are closed")
            seen.append((resident(server.pid), num_files(server.pid), len(tree(server.pid))))
        counted = counters(server.url)
    assert statuses[200] > 200, statuses
    assert statuses[400] > 400, statuses
    assert statuses[404], statuses
    assert statuses[None] < 150, statuses
    (size, _, processes_before), (size_after, _, processes_after) = seen
    assert processes_after == processes_before
    assert size_after - size < growth, f"{(size_after - size) / MIB:.1f} MiB"
    assert counted["headrace_requests_started_total"] == counted["headrace_requests_finished_total"]
    assert counted["headrace_integrity_failures_total"] == 0
    assert counted["headrace_engine_restarts_total"] == 0


@pytest.mark.timeout(240)
async def test_2000_fuzzed_requests(tmp_path: Path) -> None:
    path = make_tiny_llama(tmp_path / "tiny", max_context=512)
    await run(str(path), growth=8 * MIB, seed=4, kv_memory="1MiB")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
async def test_3200_fuzzed_requests_of_a_real_model(seed: int) -> None:
    """What is made once, for the first request of some kind, is there after more requests than above."""
    options = ("smollm2-135m", "--max-context", "512")
    await run(*options, growth=16 * MIB, seed=seed, kv_memory="64MiB", warm=2000)
