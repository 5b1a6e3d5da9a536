"""Labels, prices and capabilities are the pool's as it is now; revisions are their own, where they have one."""

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import Capability, Price, ReplicaSpec
from headrace.fleet.drivers.dressing import dressed
from headrace.fleet.drivers.protocol import Instance, InstanceState
from headrace.fleet.drivers.revision import revision_of

POOL = PoolConfig(
    name="chat", model="m", version="v2", labels={"zone": "b"}, price=Price(output=3.0),
    capabilities=(Capability.VISION,),
)  # fmt: skip
SPEC = ReplicaSpec(url="http://10.0.0.7:8000", id="chat-1", version="v1", labels={"zone": "a"})


def instance(
    pool: str = "chat", revision: str = "old", spec: ReplicaSpec | None = SPEC
) -> Instance:
    return Instance(
        id="chat-1",
        pool=pool,
        version="v1",
        revision=revision,
        state=InstanceState.RUNNING,
        spec=spec,
    )


def test_what_changes_without_a_restart_is_the_pool_s() -> None:
    (found,) = dressed([instance()], [POOL])
    assert found.spec is not None
    assert found.spec.labels == {"zone": "b"}
    assert found.spec.price == Price(output=3.0)
    assert found.spec.capabilities == (Capability.VISION,)
    assert (found.spec.url, found.spec.version, found.revision) == (SPEC.url, "v1", "old")


def test_one_that_its_place_replaces_is_never_out_of_date() -> None:
    (found,) = dressed([instance(revision="", spec=None)], [POOL])
    assert found.revision == revision_of(POOL)
    assert found.spec is None


def test_one_without_a_pool_stays_as_it_is() -> None:
    assert list(dressed([instance(pool="gone")], [POOL])) == [instance(pool="gone")]
    plain = PoolConfig(name="chat", model="m")
    (found,) = dressed([instance()], [plain])
    assert found.spec is not None
    assert found.spec.capabilities == SPEC.capabilities
