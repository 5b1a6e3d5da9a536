"""Hundreds of requests, some of whose clients leave: none lost, none stuck, nothing leaks."""

import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.crowd import random_visit, visit_all
from tests.support.patience import PATIENCE
from tests.support.processes import counters, resident, settle
from tests.support.tiny_models import make_tiny_llama

from headrace.cli.local_server import local_server

MIB = 1 << 20
NUM_WARM, NUM_MORE = 200, 300


def say(url: str) -> list[tuple[str, float]]:
    """A greedy answer of the server, to the last bit."""
    body = {"prompt": "The rain in Spain", "max_tokens": 20, "temperature": 0, "logprobs": 1}
    logprobs = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["logprobs"]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))


async def run_crowd(model: str, *options: str, growth: int, **lengths: Any) -> None:
    """`growth` is how many bytes the server's processes may grow by over the last 300 requests."""
    rng = random.Random(20)
    with local_server([model, *options], ready_timeout=PATIENCE) as server:
        before = say(server.url)
        sizes = []
        for count in (NUM_WARM, NUM_MORE):
            visits = [random_visit(rng, **lengths) for _ in range(count)]
            tally = await visit_all(server.url, visits, at_once=32)
            assert tally.answered + tally.left == count
            assert tally.left > count // 20
            report = settle(server.url)
            assert report["kv_blocks_used"] == 0
            sizes.append(resident(server.pid))
        assert say(server.url) == before
        settle(server.url)
        counted = counters(server.url)
    assert counted["headrace_requests_started_total"] == counted["headrace_requests_finished_total"]
    assert counted["headrace_requests_started_total"] > NUM_WARM + NUM_MORE
    assert counted["headrace_integrity_failures_total"] == 0
    assert counted["headrace_engine_restarts_total"] == 0
    assert sizes[1] - sizes[0] < growth


async def test_500_requests_on_a_tiny_model(tmp_path: Path) -> None:
    """Memory for KV so small that sequences are preempted."""
    path = make_tiny_llama(tmp_path / "tiny", max_context=512)
    await run_crowd(
        str(path), "--kv-memory", "512KiB", growth=4 * MIB, max_prompt=60, max_tokens=60
    )


@pytest.mark.soak
async def test_500_requests_on_a_real_model() -> None:
    await run_crowd(
        "smollm2-135m", "--kv-memory", "96MiB", growth=6 * MIB, max_prompt=200, max_tokens=100
    )
