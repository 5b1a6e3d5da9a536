"""The autoscaler over the Kubernetes driver: as many replicas as are wanted, and not one more while pods are slow to come."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.fake_kubernetes import NAMESPACE, FakeKubernetes, served
from tests.support.in_process_gateway import until

from headrace.config.fleet.read import read_fleet
from headrace.core.clock import SystemClock
from headrace.fleet.autoscaler.companion import autoscaler_of
from headrace.fleet.gateway.run import Gateway

FLEET = """
name: shop
autoscaler: {{period: 0.05s}}
discovery: {{period: 0.05s}}
health: {{probe_period: 10s}}
drivers:
  local: {{directory: {folder}}}
  kubernetes: {{api: '{url}', namespace: {namespace}, credentials: {folder}}}
pools: [{{name: chat, model: m, driver: kubernetes, min_replicas: {replicas}, max_replicas: {most}, version: {version}}}]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    (tmp_path / "token").write_text("t")
    with served(FakeKubernetes({"t"})) as running:
        running.deploy("shop", "chat", 1)
        yield running


def write(
    folder: Path, cluster: FakeKubernetes, *, replicas: int, most: int = 5, version: str = "v1"
) -> Path:
    file = folder / "fleet.yaml"
    text = FLEET.format(
        folder=folder,
        url=cluster.url,
        namespace=NAMESPACE,
        replicas=replicas,
        most=most,
        version=version,
    )
    file.write_text(text)
    return file


@pytest.fixture
async def gateway(tmp_path: Path, cluster: FakeKubernetes) -> AsyncIterator[Gateway]:
    file = write(tmp_path, cluster, replicas=3)
    made = Gateway(file, read_fleet(file), SystemClock(), autoscaler_of(file))
    await made.start()
    yield made
    await made.close()


def wanted(cluster: FakeKubernetes) -> int:
    count: int = cluster.deployments["shop-chat"]["spec"]["replicas"]
    return count


async def test_it_is_scaled_to_what_is_wanted_and_stays_so(
    gateway: Gateway, cluster: FakeKubernetes, tmp_path: Path
) -> None:
    cluster.settles = False
    await until(lambda: wanted(cluster) == 3, "three are wanted")
    for _ in range(20):
        await asyncio.sleep(0.02)
        assert wanted(cluster) == 3
    cluster.settle()
    cluster.run_pods()
    await until(lambda: len(gateway.parts.registry) == 3, "the gateway knows them")
    assert {replica.id for replica in gateway.parts.registry} == set(cluster.names())
    cluster.settles = True
    write(tmp_path, cluster, replicas=3, version="v2")
    gateway.reload()
    for _ in range(20):  # a new version is its Deployment's to roll out
        await asyncio.sleep(0.02)
        assert wanted(cluster) == 3
        assert len(cluster.names()) == 3
    write(tmp_path, cluster, replicas=1, most=1, version="v2")
    gateway.reload()
    await until(lambda: wanted(cluster) == len(cluster.names()) == 1, "one is left")
    cluster.run_pods()
    await until(lambda: len(gateway.parts.registry) == 1, "the gateway knows it")
