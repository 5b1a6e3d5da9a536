"""Instances of pools as a source of replicas: the gateway routes to what drivers list, and its probes say what is ready."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from headrace.config.fleet.replicas import ReplicaSpec
from headrace.fleet.drivers.protocol import Instance, InstanceState

_GONE = (InstanceState.STOPPING, InstanceState.FAILED)


class PoolsDiscovery:
    """Implements `fleet.discovery.Discovery`. Warm instances are listed too: probes find them unready."""

    def __init__(self) -> None:
        self._specs: tuple[ReplicaSpec, ...] | None = None

    def show(self, instances: Iterable[Instance]) -> bool:
        """What there is now; whether that is new. Replicas are called as their instances are."""
        specs = tuple(
            replace(instance.spec, id=instance.id)
            for instance in instances
            if instance.spec is not None and instance.state not in _GONE
        )
        is_new = specs != self._specs
        self._specs = specs
        return is_new

    async def list(self) -> Sequence[ReplicaSpec] | None:
        """None until drivers could be asked."""
        return self._specs
