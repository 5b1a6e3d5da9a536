"""`headrace analyze` at a gateway: its queue and its clients' times, and what a second replica would do."""

import asyncio
import json

import httpx
import pytest
from tests.support.fake_replica import replicas
from tests.support.in_process_gateway import quick, spec_of
from tests.support.patience import PATIENCE
from tests.support.processes import until
from tests.support.served_gateway import served

from headrace.cli.main import main
from headrace.core.clock import SystemClock


async def test_a_gateway_that_is_too_small(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_answered = 0

    def watch(_: SystemClock, seconds: float) -> None:
        """Not for so many seconds: until enough was seen."""
        enough = num_answered + 6
        until(lambda: num_answered >= enough, "requests are answered")

    monkeypatch.setattr(SystemClock, "sleep", watch)
    async with replicas(1, gap=0.02) as fakes:
        config = quick([spec_of(fakes[0], max_concurrency=1)])
        async with served(config) as (_, url), httpx.AsyncClient(timeout=PATIENCE) as client:
            body = {"model": "fake", "prompt": "a question", "max_tokens": 8, "stream": True}
            is_over = False

            async def keep_asking() -> None:
                nonlocal num_answered
                while not is_over:
                    await client.post(f"{url}/v1/completions", json=body)
                    num_answered += 1

            asking = [asyncio.create_task(keep_asking()) for _ in range(3)]
            command = ["analyze", url, "--no-probe", "--seconds", "2", "--json"]
            status = await asyncio.to_thread(main, command)
            is_over = True
            await asyncio.gather(*asking)
    assert status == 0
    report = json.loads(capsys.readouterr().out)
    seen, analysis = report["observations"], report["analysis"]
    assert seen["kind"] == "headrace gateway"
    assert seen["traffic"]["replicas"] == 1
    assert seen["traffic"]["requests"] >= 3
    assert seen["traffic"]["queue"] > 0.1  # two others are always before it
    assert seen["traffic"]["output_tokens"] == pytest.approx(8)
    assert analysis["bound"] == "queueing"
    assert any("One more replica (2)" in one["change"] for one in analysis["findings"])
    assert any("probe" in sentence for sentence in analysis["unknown"])
