"""The Kubernetes driver against an API server that speaks the real protocol, over TLS."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import self_signed
from tests.support.fake_kubernetes import COST, NAMESPACE, FakeKubernetes, served

from headrace.config.fleet.drivers import DriversConfig, KubernetesConfig
from headrace.config.fleet.pools import DriverKind, PoolConfig
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, DriverError
from headrace.fleet.drivers.build import make_driver
from headrace.fleet.drivers.protocol import Driver, Instance, InstanceState

POOL = PoolConfig(name="chat", model="m", driver=DriverKind.KUBERNETES)
PENDING, RUNNING, STOPPING = InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    """As a kubelet mounts them."""
    made = self_signed(tmp_path, "cluster")
    (tmp_path / "ca.crt").write_bytes(made.cert.read_bytes())
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text(NAMESPACE)
    (tmp_path / "peer").write_text("peers\n")
    return tmp_path


@pytest.fixture
def cluster(credentials: Path) -> Iterator[FakeKubernetes]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(credentials / "cluster.pem", credentials / "cluster.key")
    with served(FakeKubernetes({"first"}), tls) as running:
        yield running


def driver_of(cluster: FakeKubernetes, credentials: Path, timeout: float = 10.0) -> Driver:
    config = KubernetesConfig(
        api=cluster.url,
        credentials=str(credentials),
        peer_token_file=str(credentials / "peer"),
        timeout=timeout,
    )
    drivers = DriversConfig(kubernetes=config)
    return make_driver(DriverKind.KUBERNETES, "shop", drivers, SystemClock())


@pytest.fixture
def driver(cluster: FakeKubernetes, credentials: Path) -> Driver:
    return driver_of(cluster, credentials)


async def states(driver: Driver) -> list[InstanceState]:
    return sorted(instance.state for instance in await driver.list())


async def running(driver: Driver, cluster: FakeKubernetes, count: int) -> list[Instance]:
    cluster.deploy("shop", "chat", count)
    cluster.run_pods()
    return list(await driver.list())


async def test_pods_of_this_fleet_are_its_replicas(driver: Driver, cluster: FakeKubernetes) -> None:
    cluster.deploy("shop", "chat", 2)
    cluster.deploy("another", "chat", 3)
    assert await states(driver) == [PENDING] * 2
    cluster.run_pods()
    found = await driver.list()
    assert [i.state for i in found] == [RUNNING] * 2
    for instance in found:
        assert (instance.pool, instance.version, instance.revision) == ("chat", "v1", "")
        assert instance.spec is not None
        assert instance.spec.id == instance.id
        assert instance.spec.url.startswith("http://10.0.0.")
        assert instance.spec.url.endswith(":8000")
        assert instance.spec.peer_token == instance.spec.api_key == "peers"
        assert instance.started == 1796025600.0


async def test_one_more_is_there_before_its_pod_is(driver: Driver, cluster: FakeKubernetes) -> None:
    await running(driver, cluster, 1)
    cluster.settles = False
    made = await driver.start(POOL)
    assert made.state is PENDING
    assert await states(driver) == [PENDING, RUNNING]
    cluster.settle()
    assert await states(driver) == [PENDING, RUNNING]
    cluster.run_pods()
    assert await states(driver) == [RUNNING] * 2
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 2


async def test_one_without_a_pod_can_be_taken_back(driver: Driver, cluster: FakeKubernetes) -> None:
    await running(driver, cluster, 1)
    cluster.settles = False
    await driver.start(POOL)
    (waiting,) = [i for i in await driver.list() if i.state is PENDING]
    assert await driver.describe(waiting.id) is None
    await driver.stop(waiting.id, grace=0)
    await driver.stop(waiting.id, grace=0)
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 1


@pytest.mark.parametrize("chosen", [0, 1, 2])
async def test_the_pod_that_has_drained_is_the_one_that_goes(
    driver: Driver, cluster: FakeKubernetes, chosen: int
) -> None:
    found = await running(driver, cluster, 3)
    going = found[chosen].id
    await driver.stop(going, grace=77)
    assert set(cluster.names()) == {i.id for i in found} - {going}
    assert cluster.pods[going]["metadata"]["deletionGracePeriodSeconds"] == 77
    assert await states(driver) == [RUNNING, RUNNING, STOPPING]
    await driver.stop(going, grace=5)
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 2
    cluster.run_pods()
    assert await states(driver) == [RUNNING, RUNNING]
    await driver.stop(going, grace=5)
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 2


async def test_it_goes_although_a_pod_that_starts_would_go_first(
    driver: Driver, cluster: FakeKubernetes
) -> None:
    found = await running(driver, cluster, 2)
    await driver.start(POOL)
    await driver.stop(found[0].id, grace=1)
    assert found[0].id not in cluster.names()
    assert found[1].id in cluster.names()
    assert len(cluster.names()) == 2


async def test_a_mark_of_one_that_stayed_does_not_count_later(
    driver: Driver, cluster: FakeKubernetes
) -> None:
    found = await running(driver, cluster, 3)
    stayed, going = cluster.pods[found[0].id], found[1].id
    stayed["metadata"]["annotations"] = {COST: "-2000000000"}
    await driver.stop(going, grace=1)
    assert set(cluster.names()) == {found[0].id, found[2].id}
    assert COST not in stayed["metadata"]["annotations"]


async def test_an_evicted_pod_is_cleared_away_and_nothing_is_scaled(
    driver: Driver, cluster: FakeKubernetes
) -> None:
    (instance,) = await running(driver, cluster, 1)
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
    cluster.pods[instance.id]["status"] = status
    cluster.settle()
    failed = next(i for i in await driver.list() if i.state is InstanceState.FAILED)
    assert failed.reason == "Evicted: The node was low on memory."
    await driver.stop(failed.id, grace=0)
    cluster.run_pods()
    assert await states(driver) == [RUNNING]
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 1


async def test_a_conflict_is_no_failure_and_undoes_nothing(
    driver: Driver, cluster: FakeKubernetes
) -> None:
    await running(driver, cluster, 1)
    cluster.num_conflicts = 3
    await driver.start(POOL)
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 2
    cluster.num_conflicts = 100
    with pytest.raises(DriverError, match="changed by others"):
        await driver.start(POOL)
    assert cluster.deployments["shop-chat"]["spec"]["replicas"] == 2


async def test_a_list_in_pieces_that_grows_old_is_begun_again(
    driver: Driver, cluster: FakeKubernetes
) -> None:
    cluster.deploy("shop", "chat", 7)
    cluster.max_piece, cluster.num_expiries = 3, 2
    assert await states(driver) == [PENDING] * 7
    cluster.num_expiries = 100
    with pytest.raises(DriverError, match="faster than it can be read"):
        await driver.list()


async def test_a_new_token_is_taken_from_its_file(
    driver: Driver, cluster: FakeKubernetes, credentials: Path
) -> None:
    await running(driver, cluster, 1)
    cluster.tokens = {"second"}
    with pytest.raises(DriverError, match="401: Unauthorized"):
        await driver.list()
    (credentials / "token").write_text("second-and-last")
    cluster.tokens = {"second-and-last"}
    assert await states(driver) == [RUNNING]


async def test_another_authority_is_not_trusted_and_a_renewed_one_is(
    driver: Driver, cluster: FakeKubernetes, credentials: Path, tmp_path: Path
) -> None:
    right = (credentials / "ca.crt").read_bytes()
    (credentials / "ca.crt").write_bytes(self_signed(tmp_path, "stranger").cert.read_bytes())
    with pytest.raises(DriverError, match="cannot be reached"):
        await driver.list()
    (credentials / "ca.crt").write_text("garbage")
    with pytest.raises(DriverError, match=r"ca\.crt cannot be used"):
        await driver.list()
    (credentials / "ca.crt").write_bytes(right)
    assert await states(driver) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((403, b'{"message": "pods is forbidden"}'), "403: pods is forbidden"),
        ((500, b"<html>"), "answered 500"),
        ((200, b"nonsense"), "not JSON"),
        ((200, b"[]"), "no object"),
        ((200, b"{}"), "gives no list"),
        ((200, b'{"items": 3, "metadata": {}}'), "gives no list"),
        ((410, b"{}"), "faster than it can be read"),
    ],
)
async def test_what_cannot_be_told_is_an_error_and_no_empty_list(
    driver: Driver, cluster: FakeKubernetes, answer: tuple[int, bytes], words: str
) -> None:
    cluster.answer = answer
    with pytest.raises(DriverError, match=words):
        await driver.list()


async def test_a_server_that_does_not_answer_is_waited_for_in_vain(
    cluster: FakeKubernetes, credentials: Path
) -> None:
    cluster.delay.clear()
    with pytest.raises(DriverError, match=r"has not answered for 0\.3 s"):
        await driver_of(cluster, credentials, timeout=0.3).list()


async def test_a_pool_without_a_deployment_is_named(
    driver: Driver, cluster: FakeKubernetes
) -> None:
    with pytest.raises(DriverError, match=r"0 Deployments .*pool chat needs one"):
        await driver.start(POOL)


async def test_a_lost_peer_token_is_an_error(
    driver: Driver, cluster: FakeKubernetes, credentials: Path
) -> None:
    (credentials / "peer").unlink()
    with pytest.raises(DriverError, match="peer cannot be read"):
        await driver.list()


async def test_an_operator_sees_node_and_log(driver: Driver, cluster: FakeKubernetes) -> None:
    (instance,) = await running(driver, cluster, 1)
    facts = await driver.describe(instance.id)
    assert facts is not None
    assert facts["pod"] == instance.id
    assert facts["phase"] == "Running"
    assert facts["last_lines"] == "loading\nready\n"
    assert await driver.describe("another") is None
    await driver.close()


def test_outside_of_a_cluster_an_address_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for config, words in (
        (KubernetesConfig(credentials=str(tmp_path)), "namespace"),
        (KubernetesConfig(namespace="llm", credentials=str(tmp_path)), "api"),
    ):
        drivers = DriversConfig(kubernetes=config)
        with pytest.raises(ConfigError, match=words):
            make_driver(DriverKind.KUBERNETES, "shop", drivers, SystemClock())
