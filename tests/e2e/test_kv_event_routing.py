"""A real replica's KV events and tokens, and what the gateway's index makes of them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess, until
from tests.support.tiny_models import make_tiny_llama

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.routing import RoutingConfig
from headrace.core.clock import SystemClock
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.gateway.prefix import trust
from headrace.fleet.gateway.prefix.knowledge import Knowledge
from headrace.fleet.gateway.prefix.trust import Standing
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.pool import Pool, address_of
from headrace.observe.catalogue import PREFIX_BLOCKS, PREFIX_EVENTS_TRUSTED
from headrace.observe.metrics import Metrics

SECRET = "peer-secret"
TEXT = "The rain in Spain stays mainly in the plain. " * 8
BODIES = [
    {"prompt": TEXT, "max_tokens": 4},
    {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4},
]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"ipc://{tmp_path_factory.mktemp('kv')}/events"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, endpoint: str) -> Iterator[ServeProcess]:
    model = str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_context=2048))
    arguments = ("--kv-events", endpoint, "--trusted-peer-token", SECRET)
    with ServeProcess(model, "--port", "0", *arguments) as process:
        yield process.wait_ready()


def make_replica(spec: ReplicaSpec) -> Replica:
    pool = Pool(address_of(spec.url), TimeoutConfig(), max_idle=4, max_buffer=1 << 20)
    return Replica(spec, backend_for(spec), pool, HealthConfig())


class World:
    """A gateway's knowledge of one replica."""

    def __init__(self, url: str, endpoint: str) -> None:
        self.registry = Registry(HealthConfig(), SystemClock(), make_replica)
        self.knowledge = Knowledge(
            RoutingConfig(tokenize_timeout=20.0), self.registry, SystemClock()
        )
        spec = ReplicaSpec(url=url, id="r", kv_events=endpoint, peer_token=SECRET)  # type: ignore[arg-type]
        self.registry.reconcile([spec])
        self.knowledge.sync()
        self.url = url

    async def serve(self, body: dict[str, Any], salt: str) -> int:
        """Cached tokens, as foretold, of a request that is then made."""
        index = self.knowledge.index
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        prompt = index.read(body, model="tiny", salt=salt, num_tokens=100)
        prompt = await self.knowledge.with_tokens(prompt, body, salt, list(self.registry))
        foretold = index.cached(prompt).get("r", 0)
        index.note_sent(prompt, "r")
        sent = {**body, "cache_salt": salt} if salt else body
        headers = {"x-headrace-peer": SECRET}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE
        ) as client:
            answer = await client.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        index.note_answered(prompt, "r")
        self.cached = (
            answer.json()["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        )
        return foretold

    async def close(self) -> None:
        await self.knowledge.close()
        self.registry.close()


@pytest.mark.parametrize("body", BODIES, ids=["completion", "chat"])
@pytest.mark.parametrize("salt", ["", "tenant-7"])
async def test_events_prove_right_and_foretell_hits(
    server: ServeProcess,
    endpoint: str,
    body: dict[str, Any],
    salt: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust, "PATIENCE", 0.3)
    world = World(server.url, endpoint)
    try:
        async with asyncio.timeout(PATIENCE):
            number = 0
            # What is cached already is told no more to those that come late: every time another prompt.
            while world.knowledge.index.standing()["r"] is not Standing.TRUSTED:
                number += 1
                fresh = (
                    {**body, "prompt": f"{salt} {number} {TEXT}"}
                    if "prompt" in body
                    else {
                        **body,
                        "messages": [{"role": "user", "content": f"{salt} {number} {TEXT}"}],
                    }
                )
                await world.serve(fresh, salt)
                await asyncio.sleep(0.4)
        foretold = await world.serve(fresh, salt)
        assert foretold >= world.cached > 0
        metrics = Metrics()
        world.knowledge.write_gauges(metrics)
        assert metrics.value(PREFIX_EVENTS_TRUSTED, ("r",)) == 1.0
        assert metrics.value(PREFIX_BLOCKS, ()) > 0
    finally:
        await world.close()


@pytest.fixture
def gateway(server: ServeProcess, endpoint: str, tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "fleet.yaml"
    replica = f"{{url: '{server.url}', id: r, peer_token: {SECRET}, kv_events: '{endpoint}'}}"
    file.write_text(
        f"gateway: {{port: 0}}\nhealth: {{probe_timeout: 60s}}\nrouting: {{tokenize_timeout: 60s}}\nreplicas: [{replica}]\n",
        "utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "gateway", str(file)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if " gateway at " in line)
        yield line.split(" gateway at ")[1].split(",")[0]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_a_gateway_routes_by_events(gateway: str) -> None:
    def trusted() -> bool:
        return (
            'headrace_gateway_kv_events_trusted{replica="r"} 1'
            in httpx.get(f"{gateway}/metrics").text
        )

    def say(text: str) -> httpx.Response:
        body = {"model": model, "prompt": text, "max_tokens": 2}
        answer = httpx.post(f"{gateway}/v1/completions", json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer

    until(lambda: httpx.get(f"{gateway}/readyz").status_code == 200, "the gateway is ready")
    model = httpx.get(f"{gateway}/v1/models").json()["data"][0]["id"]
    numbers = iter(range(1000))
    until(lambda: (say(f"gateway {next(numbers)} {TEXT}"), trusted())[1], "events are believed")
    say(f"gateway once {TEXT}")
    answer = say(f"gateway once {TEXT}")
    assert "sticky; warm, cached" in answer.headers["x-headrace-route"]
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
