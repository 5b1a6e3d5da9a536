"""The Ray driver on a real Ray cluster of one small node."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.local_fleet import wait_gone
from tests.support.patience import PATIENCE
from tests.support.processes import until
from tests.support.tiny_models import make_tiny_llama

from headrace.config.fleet.drivers import DriversConfig, RayConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig, ResourcesConfig
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import SystemClock
from headrace.core.stats import ReplicaState
from headrace.fleet.autoscaler import warmth as warmth_module
from headrace.fleet.autoscaler.warmth import HttpWarmth
from headrace.fleet.drivers.build import make_driver
from headrace.fleet.drivers.protocol import Driver, Instance, InstanceState
from headrace.fleet.drivers.ray import cluster
from headrace.fleet.gateway.build import make_replica

ray = pytest.importorskip("ray", reason="Ray is not installed (headrace[ray])")

#: Ray leaves sockets and processes to its own end, and warns of its own future.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ONE_CPU = ResourcesConfig(cpus=1)


@pytest.fixture(autouse=True)
def _patience_with_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE", PATIENCE)
    monkeypatch.setattr(warmth_module, "STATE_PATIENCE", PATIENCE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolConfig:
    model = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    return PoolConfig(
        name="chat", model=str(model), version="v/2 ü", labels={"zone": "a"}, resources=ONE_CPU,
        serve={"max-context": 512},
    )  # fmt: skip


def connect(address: str, fleet: str = "shop") -> Driver:
    config = DriversConfig(ray=RayConfig(address=address))
    return make_driver(DriverKind.RAY, fleet, config, SystemClock())


@pytest.fixture
async def driver(address: str) -> AsyncIterator[Driver]:
    made = connect(address)
    yield made
    for instance in await made.list():
        await made.stop(instance.id, grace=0)
    await until_listed(made, lambda listed: not listed)
    await made.close()


async def until_listed(
    driver: Driver, condition: Callable[[Sequence[Instance]], object]
) -> Sequence[Instance]:
    async with asyncio.timeout(PATIENCE):
        while not condition(listed := await driver.list()):  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.05)
    return listed


def all_are(state: InstanceState) -> Callable[[Sequence[Instance]], bool]:
    return lambda listed: [instance.state for instance in listed] == [state] * len(listed) != []


def ask(instance: Instance, key: str | None) -> int:
    assert instance.spec is not None
    body = {"prompt": [5, 6], "max_tokens": 1, "model": "any"}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{instance.spec.url}/v1/completions"
    return httpx.post(url, json=body, headers=headers, timeout=PATIENCE).status_code


async def test_a_replica_serves_by_http_and_is_adopted_and_drained(
    driver: Driver, pool: PoolConfig, address: str
) -> None:
    started = await driver.start(pool)
    assert started.state is InstanceState.PENDING
    (running,) = await until_listed(driver, all_are(InstanceState.RUNNING))
    assert (running.id, running.pool, running.version) == (started.id, "chat", "v/2 ü")
    assert running.revision == started.revision
    assert running.spec is not None
    assert running.spec.labels == {"zone": "a"}
    key = str(running.spec.api_key)
    await asyncio.to_thread(until, lambda: ask(running, key) in (200, 404), "it serves")
    assert ask(running, None) == ask(running, "another") == 401
    assert list(await connect(address).list()) == [running]
    assert list(await connect(address, "another").list()) == []
    facts = await driver.describe(running.id)
    assert facts is not None
    assert key not in facts["command"]
    assert "is ready at" in facts["last_lines"]
    await driver.stop(running.id, grace=30)
    await until_listed(driver, lambda listed: not listed)
    await asyncio.to_thread(wait_gone, int(facts["pid"]))
    assert await driver.describe(running.id) is None


async def test_a_warm_one_is_parked_and_serves_when_it_is_woken(
    driver: Driver, pool: PoolConfig
) -> None:
    await driver.start(pool, prestarted=True)
    (running,) = await until_listed(driver, all_are(InstanceState.RUNNING))
    spec = running.spec
    assert spec is not None
    replica = make_replica(FleetConfig(), spec)
    warmth = HttpWarmth()
    try:
        async with asyncio.timeout(PATIENCE):
            while await warmth.state(replica) is not ReplicaState.PARKED:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(ask, running, str(spec.api_key)) == 503
        await warmth.wake(replica, pool)
        assert await warmth.state(replica) is ReplicaState.READY
        await warmth.park(replica)
        assert await warmth.state(replica) is ReplicaState.PARKED
    finally:
        replica.pool.close()


async def test_a_server_dies_with_its_actor_and_the_place_is_kept_until_it_is_cleared(
    driver: Driver, pool: PoolConfig
) -> None:
    await driver.start(pool)
    (running,) = await until_listed(driver, all_are(InstanceState.RUNNING))
    facts = await driver.describe(running.id)
    assert facts is not None
    server = int(facts["pid"])
    psutil.Process(server).parent().kill()
    await asyncio.to_thread(wait_gone, server)
    (failed,) = await until_listed(driver, all_are(InstanceState.FAILED))
    assert failed.id == running.id
    assert failed.reason
    await driver.stop(failed.id, grace=5)
    await until_listed(driver, lambda listed: not listed)


async def test_one_that_cannot_load_says_why_and_one_without_room_waits(
    driver: Driver, pool: PoolConfig, tmp_path: Path
) -> None:
    faulty = PoolConfig(name="faulty", model=str(tmp_path / "nothing.gguf"), resources=ONE_CPU)
    large = PoolConfig(name="large", model=pool.model, resources=ResourcesConfig(cpus=64))
    await driver.start(large)
    await driver.start(faulty)
    listed = await until_listed(
        driver, lambda listed: any(i.state is InstanceState.FAILED for i in listed)
    )
    states = {instance.pool: instance for instance in listed}
    assert "nothing.gguf" in states["faulty"].reason
    assert states["large"].state is InstanceState.PENDING
    assert states["large"].reason == "no node has room for it yet"
