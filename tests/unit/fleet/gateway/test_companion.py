"""A companion gives its gateway replicas, hears of new configurations, and ends with it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.fleet.dashboard.feeds import DecisionView, PoolView
from headrace.fleet.dashboard.snapshot import Look
from headrace.fleet.discovery import Discovery, StaticDiscovery
from headrace.fleet.gateway.run import Gateway
from headrace.web.endpoint import Endpoint
from headrace.web.keys import KeyRing


class Found:
    """Has one replica, and takes no configuration with a pool."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.keys: KeyRing | None = None

    def sources(self) -> Mapping[str, Discovery]:
        return {"found": StaticDiscovery([ReplicaSpec(url="http://127.0.0.1:9", id="found")])}

    def pools(self) -> list[PoolView]:
        return []

    def decisions(self) -> list[DecisionView]:
        return [DecisionView(at=1.0, pool="chat", reason="Nobody asks.")]

    def endpoints(self, keys: KeyRing) -> Sequence[Endpoint]:
        self.keys = keys
        return []

    async def start(self) -> None:
        self.log.append("start")

    def check(self, config: FleetConfig) -> None:
        if config.pools:
            raise ConfigError("No pools.")

    def apply(self, config: FleetConfig) -> None:
        self.log.append("apply")

    async def close(self) -> None:
        self.log.append("close")


async def test_a_gateway_and_its_companion(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("replicas: [{url: 'http://127.0.0.1:10', id: listed}]")
    found = Found()
    gateway = Gateway(file, read_fleet(file), FakeClock(), lambda *_: found)
    await gateway.start()
    assert {replica.id for replica in gateway.parts.registry} == {"listed", "found"}
    shown = gateway.dashboard.snapshot(Look())
    assert [one.reason for one in shown.decisions] == ["Nobody asks."]
    file.write_text("pools: [{name: chat, model: m}]")
    with pytest.raises(ConfigError, match="No pools"):
        gateway.reload()
    # What another part refuses, its companion does not hear of.
    text = tmp_path / "text.db"
    text.write_text("no database, but much text " * 100)
    file.write_text(f"pipelines: {{vectors: [{{name: v, path: '{text}', embeddings: e}}]}}")
    with pytest.raises(ConfigError, match=r"text\.db"):
        gateway.reload()
    assert found.log == ["start"]
    file.write_text("replicas: []")
    gateway.reload()
    await gateway.close()
    assert found.log == ["start", "apply", "close"]
    assert found.keys is None


async def test_its_endpoints_stand_behind_the_admin_keys(tmp_path: Path) -> None:
    found = Found()
    config = FleetConfig(gateway=GatewayConfig(admin_keys=Secret("k")))
    gateway = Gateway(tmp_path / "none.yaml", config, FakeClock(), lambda *_: found)
    assert found.keys is not None
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert (await client.get("/admin/replicas")).status_code == 401
