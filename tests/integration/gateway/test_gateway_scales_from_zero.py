"""A real gateway in front of a pool that sleeps: requests wait for it, are told so, and none is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.autoscaler_world import FakeLease
from tests.support.fake_driver import FakeDriver
from tests.support.fake_replica import FakeReplica
from tests.support.in_process_gateway import ClientCall, quick, until

from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.scaling import AutoscalerConfig, DecisionLogConfig, ScalingConfig
from headrace.config.secret import Secret
from headrace.core.clock import Clock, SystemClock
from headrace.fleet.autoscaler.build import Surroundings, build_autoscaler
from headrace.fleet.autoscaler.companion import Autoscaler
from headrace.fleet.gateway.build import Parts
from headrace.fleet.gateway.run import Gateway
from headrace.observe import autoscaler_metrics as table

CHAT, ADMIN = "/v1/chat/completions", {"authorization": "Bearer boss"}
QUESTION = b'{"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": %s}'
POOL = PoolConfig(name="chat", model="fake", min_replicas=0, max_replicas=2)


class Fleet:
    """The gateway, its autoscaler, the place, and the one server that all instances are."""

    def __init__(self, directory: Path, replica: FakeReplica, config: FleetConfig) -> None:
        self.driver = FakeDriver(SystemClock(), url_of=lambda _: replica.url)
        self.replica = replica

        def companion(parts: Parts, config: FleetConfig, clock: Clock) -> Autoscaler:
            around = Surroundings(parts.registry, parts.admission, parts.metrics, clock)
            made = build_autoscaler(
                config, {DriverKind.LOCAL: self.driver}, directory, around, lease=FakeLease()
            )
            return Autoscaler(made, clock)

        self.gateway = Gateway(directory / "fleet.yaml", config, SystemClock(), companion)
        self.metrics = self.gateway.parts.metrics

    def call(self, path: str = CHAT, body: bytes = QUESTION % b"false", **more: Any) -> ClientCall:
        return ClientCall(self.gateway, path, body, more.pop("headers", {}), **more)

    async def admin(self, method: str, path: str, body: bytes = b"") -> ClientCall:
        path, _, query = path.partition("?")
        call = self.call(f"/admin{path}", body, method=method, headers=ADMIN, query=query.encode())
        return await call.end()

    def num_alive(self) -> int:
        return len(self.driver.snapshot())


def config_of(directory: Path, **scaling: Any) -> FleetConfig:
    usual = {"zero_delay": 1.0, "down_delay": 0.1, "down_pause": 0.0}
    base = quick([])
    gateway = GatewayConfig(
        timeouts=base.gateway.timeouts, retries=base.gateway.retries, admin_keys=Secret("boss")
    )
    autoscaler = AutoscalerConfig(
        period=0.02,
        scaling=ScalingConfig(**{**usual, **scaling}),
        decisions=DecisionLogConfig(file=str(directory / "decisions.jsonl")),
    )
    return FleetConfig(
        gateway=gateway,
        health=base.health,
        routing=base.routing,
        pools=(POOL,),
        autoscaler=autoscaler,
    )


@asynccontextmanager
async def fleet(directory: Path, **scaling: Any) -> AsyncIterator[Fleet]:
    replica = await FakeReplica().start()
    made = Fleet(directory, replica, config_of(directory, **scaling))
    await made.gateway.start()
    try:
        yield made
    finally:
        await made.gateway.close()
        await replica.kill()


async def test_requests_wait_for_a_sleeping_pool_and_none_is_lost(tmp_path: Path) -> None:
    async with fleet(tmp_path) as made:
        await until(lambda: made.gateway.parts.registry.is_asleep, "the pool sleeps")
        assert (await made.call("/readyz", b"", method="GET").end()).status == 200
        models = (await made.call("/v1/models", b"", method="GET").end()).json
        assert [card["id"] for card in models["data"]] == ["fake"]
        assert made.num_alive() == 0
        calls = [made.call(body=QUESTION % (b"true" if n % 2 else b"false")) for n in range(10)]
        await asyncio.gather(*(call.end() for call in calls))
        for call in calls:
            assert call.status == 200, call.body
            assert float(call.headers["x-headrace-cold-start"]) > 0.0
        assert made.num_alive() >= 1
        warm = await made.call().end()
        assert "x-headrace-cold-start" not in warm.headers
        await until(lambda: made.num_alive() == 0, "it sleeps again")
        again = await made.call().end()
        assert again.status == 200
        assert "x-headrace-cold-start" in again.headers
        found = dict(made.metrics.histograms(table.COLD_START))
        assert found["chat", "exec"].count >= 2


async def test_a_model_that_nobody_can_start_is_not_waited_for(tmp_path: Path) -> None:
    async with fleet(tmp_path) as made:
        body = QUESTION.replace(b"fake", b"other") % b"false"
        assert (await made.call(body=body).end()).status == 404


async def test_operators_see_and_set_pools(tmp_path: Path) -> None:
    async with fleet(tmp_path) as made:
        assert (await made.call("/admin/pools", b"", method="GET").end()).status == 401
        set_to = await made.admin("POST", "/pools/chat/scale", b'{"replicas": 2}')
        assert set_to.json == {"message": "The pool chat gets 2 replicas."}
        await until(lambda: made.num_alive() == 2, "two are started")
        replicas = made.gateway.parts.registry
        await until(lambda: sum(r.ready_since is not None for r in replicas) == 2, "both are ready")
        await until(
            lambda: made.metrics.value(table.POOL_REPLICAS, ("chat", "ready")) == 2.0,
            "that is told",
        )
        status = (await made.admin("GET", "/pools")).json
        assert status["is_active"]
        [pool] = status["pools"]
        assert (pool["name"], pool["override"], pool["decision"]["desired"]) == ("chat", 2, 2)
        assert sorted(i["phase"] for i in pool["instances"]) == ["ready", "ready"]
        assert pool["signals"]["num_ready"] == 2
        one = pool["instances"][0]["id"]
        facts = (await made.admin("GET", f"/instances/{one}")).json
        assert facts == {"facts": {"node": "test", "state": "running"}}
        assert (await made.admin("GET", "/instances/none")).status == 404
        await made.admin("POST", "/pools/chat/scale", b'{"replicas": null}')
        await until(lambda: made.num_alive() == 0, "the policy has it again")
        log = (await made.admin("GET", "/decisions?count=1000&pool=chat")).json["decisions"]
        texts = [entry["text"] for entry in log]
        assert "set to 2, by an operator" in texts
        assert any(text.startswith("drains") for text in texts)
        numbers = [entry["number"] for entry in log]
        assert numbers == sorted(numbers)
        later = (await made.admin("GET", f"/decisions?after={numbers[-2]}")).json["decisions"]
        assert later[0]["number"] == numbers[-1]
        lines = (tmp_path / "decisions.jsonl").read_text().splitlines()
        assert len(lines) >= len(log) - 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/pools/none/scale", b'{"replicas": 1}', 404, None),
        ("POST", "/pools/chat/scale", b'{"replicas": 3}', 400, "replicas"),
        ("POST", "/pools/chat/scale", b'{"replicas": -1}', 400, "replicas"),
        ("POST", "/pools/chat/scale", b'{"replicas": "two"}', 400, "replicas"),
        ("POST", "/pools/chat/scale", b"{}", 400, "replicas"),
        ("POST", "/pools/chat/scale", b"", 400, None),
        ("GET", "/decisions?count=0", b"", 400, "count"),
        ("GET", "/decisions?count=\xc2\xb2", b"", 400, "count"),
        ("GET", "/decisions?after=-1", b"", 400, "after"),
        ("GET", "/decisions?pool=none", b"", 404, None),
        ("GET", "/decisions?nonsense=1", b"", 400, "nonsense"),
    ],
)
async def test_what_operators_get_wrong(
    tmp_path: Path, method: str, path: str, body: bytes, status: int, param: str | None
) -> None:
    async with fleet(tmp_path) as made:
        answer = await made.admin(method, path, body)
        assert answer.status == status, answer.body
        assert answer.error is not None
        assert answer.error.get("param") == param
