"""Options change how answers are made, not what they are; another server continues them."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess, counters, settle, until
from tests.support.tiny_models import make_tiny_llama

PEER = {"x-headrace-peer": "a secret"}
OPTIONS = (
    ["--batching", "static", "--batch-size", "4"],
    ["--batching", "dynamic", "--batch-size", "4", "--batch-window", "0.02"],
    ["--no-chunked-prefill", "--max-uncommitted-plans", "2"],
    ["--kv-memory", "256KiB", "--itl-target", "0.01"],
    ["--block-size", "64", "--no-prefix-cache", "--threads", "1"],
    ["--max-num-seqs", "3", "--memory-utilization", "0.05"],
    ["--max-num-batched-tokens", "1"],
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", hidden_size=128))


def serve(model: str, *options: str) -> ServeProcess:
    return ServeProcess(model, "--port", "0", "--trusted-peer-token", "a secret", *options)


async def burst(url: str) -> list[str]:
    """What ten clients at once are answered, half of them greedily."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        bodies: list[dict[str, Any]] = [
            {
                "prompt": f"item {number} " * (1 + 2 * number),
                "max_tokens": 60,
                "ignore_eos": True,
                "seed": number,
                "temperature": number % 2,
            }
            for number in range(10)
        ]
        posts = (client.post("/v1/completions", json=body) for body in bodies)
        return [answer.json()["choices"][0]["text"] for answer in await asyncio.gather(*posts)]


@pytest.fixture(scope="module")
def expected(model: str) -> list[str]:
    with serve(model) as process:
        return asyncio.run(burst(process.wait_ready().url))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options[0].strip("-"))
def test_the_answers_are_the_same(model: str, expected: list[str], options: list[str]) -> None:
    with serve(model, *options) as process:
        process.wait_ready()

        def holds() -> bool:
            """Once, or where there is little memory until enough clients met for one to be put off."""
            assert asyncio.run(burst(process.url)) == expected
            assert settle(process.url)["kv_blocks_used"] == 0
            is_short = "--kv-memory" in options
            return not is_short or counters(process.url)["headrace_preemptions_total"] > 0

        until(holds, "a sequence is put off")


def test_another_server_continues_an_answer(model: str) -> None:
    """The stream of one server, cut anywhere, goes on token for token on the next."""
    body = {
        "prompt": "Hello there", "max_tokens": 40, "temperature": 0.9, "ignore_eos": True,
        "frequency_penalty": 0.5, "seed": 12, "stream": True,
    }  # fmt: skip
    with serve(model) as first:
        whole = _stream(first.wait_ready().url, body)
    assert len(whole) == 40
    with serve(model, "--max-num-batched-tokens", "8", "--no-prefix-cache") as second:
        second.wait_ready()
        for cut in (1, 16, 39):
            rest = _stream(second.url, body | {"prior_output_ids": whole[:cut]})
            assert whole[:cut] + rest == whole


def _stream(url: str, body: dict[str, Any]) -> list[int]:
    """The token ids beside the events."""
    lines = httpx.post(f"{url}/v1/completions", json=body, headers=PEER, timeout=PATIENCE).text
    comments = [line for line in lines.splitlines() if line.startswith(": headrace ")]
    return [i for line in comments for i in json.loads(line[len(": headrace ") :])["token_ids"]]
