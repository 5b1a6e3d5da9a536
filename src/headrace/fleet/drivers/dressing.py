"""What an instance is by its pool's word, as that is now: labels and prices change without a restart. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.fleet.drivers.protocol import Instance
from headrace.fleet.drivers.revision import revision_of


def dressed(instances: Iterable[Instance], pools: Sequence[PoolConfig]) -> Iterator[Instance]:
    """The same instances. One of a pool that there is no more stays as it was noted; one whose place replaces it by
    itself is never out of date.
    """
    by_name = {pool.name: pool for pool in pools}
    for instance in instances:
        pool = by_name.get(instance.pool)
        if pool is None:
            yield instance
            continue
        spec = None if instance.spec is None else _dressed(instance.spec, pool)
        yield replace(instance, spec=spec, revision=instance.revision or revision_of(pool))


def _dressed(spec: ReplicaSpec, pool: PoolConfig) -> ReplicaSpec:
    spec = replace(spec, labels=pool.labels, price=pool.price)
    if pool.capabilities is not None:
        spec = replace(spec, capabilities=pool.capabilities)
    return spec
