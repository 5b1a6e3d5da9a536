"""All that is asked of Ray, in calls that block: placement groups, the actors in them, and what those say.

A replica is a detached placement group and a detached actor of the same name. Both outlive whoever made them. The
group is there first and goes last: one without its actor is a replica that was lost.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.config.fleet.drivers import RayConfig
from headrace.config.fleet.pools import PoolConfig, ResourcesConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, DriverError
from headrace.fleet.drivers.launching import new_id, noted, replica_spec, serve_arguments
from headrace.fleet.drivers.protocol import Instance
from headrace.fleet.drivers.ray.naming import Name, read_name
from headrace.fleet.drivers.ray.replicas import Sight, instance_of
from headrace.fleet.drivers.ray.supervisor import Report, Supervisor
from headrace.fleet.drivers.revision import revision_of

#: A group wants some resource, also of a replica that shares all: so many CPUs.
_SMALL_SHARE: Final = 0.001
#: Seconds that supervisors get to answer, all together.
_PATIENCE: Final = 2.0
_GONE: Final = "REMOVED"
_PLACED: Final = "CREATED"
_MAX_REASON: Final = 300

log = logging.getLogger("headrace.fleet")


class Cluster:
    """Connects at its first call, and again when the connection was lost. Whoever calls sees to one call at a time."""

    def __init__(self, fleet: str, config: RayConfig, clock: Clock) -> None:
        self._fleet = fleet
        self._config = config
        self._clock = clock
        self._asked: dict[Name, Any] = {}
        """Questions to supervisors that are not answered yet."""
        self._told: dict[Name, Report] = {}

    def list(self) -> Sequence[Instance]:
        """All of this fleet. Those that were told to stop and have ended are cleared away. Raises DriverError."""
        ray = self._connected()
        try:
            return self._list(ray)
        except ray.exceptions.RayError as error:
            raise _driver_error(error) from None

    def start(self, pool: PoolConfig, *, parked: bool = False) -> Instance:
        """It is PENDING until Ray has found a node with room for it; a `parked` one keeps its room. Raises DriverError,
        ConfigError.
        """
        arguments = serve_arguments(pool, threads=round(pool.resources.cpus), parked=parked)
        ray = self._connected()
        name = Name(
            fleet=self._fleet,
            id=new_id(pool.name),
            revision=revision_of(pool),
            started=self._clock.wall(),
            version=pool.version,
        )
        spec = replica_spec(pool, replica_id=name.id, url="http://pending", token=None)
        try:
            group = ray.util.placement_group(
                [_bundle(pool.resources)], name=str(name), lifetime="detached"
            )
            _actor_class(ray, group, name, pool.resources).remote(arguments, noted(spec).decode())
        except (ray.exceptions.RayError, ValueError) as error:
            raise DriverError(
                f"Ray did not take a replica of {pool.name}: {_words(error)}"
            ) from None
        log.info("Replica %s is for Ray to place", name.id)
        made = instance_of(name, Sight(is_placed=False, has_actor=True), self._clock.wall())
        assert made is not None
        return made

    def stop(self, replica_id: str, grace: float) -> None:
        """Tell its supervisor; clear away what has none, or has ended. Raises DriverError."""
        ray = self._connected()
        try:
            groups = self._groups(ray)
            for name in [name for name in groups if name.id == replica_id]:
                sight = self._look(ray, [name], groups, self._actors(ray))[name]
                instance = instance_of(name, sight, self._clock.wall())
                if instance is None or instance.spec is None:
                    self._clear(ray, name)  # it has failed, or never served
                else:
                    actor = ray.get_actor(str(name))
                    ray.get(actor.stop.remote(grace), timeout=self._config.timeout)
        except (ray.exceptions.RayError, ValueError) as error:
            raise _driver_error(error) from None

    def describe(self, replica_id: str) -> Mapping[str, str] | None:
        """What its supervisor says. Raises DriverError."""
        ray = self._connected()
        try:
            groups = self._groups(ray)
            for name in [name for name in groups if name.id == replica_id]:
                sight = self._look(ray, [name], groups, self._actors(ray))[name]
                facts = sight.report.facts if sight.report is not None else {}
                return {"actor": str(name), "group": groups[name], **facts, "reason": sight.death}
        except ray.exceptions.RayError as error:
            raise _driver_error(error) from None
        return None

    # -- looking ----------------------------------------------------------------------------------------

    def _list(self, ray: Any) -> Sequence[Instance]:
        groups = self._groups(ray)
        sights = self._look(ray, list(groups), groups, self._actors(ray))
        for gone in self._told.keys() - groups.keys():
            del self._told[gone]
        found = []
        for name, sight in sights.items():
            instance = instance_of(name, sight, self._clock.wall())
            if instance is None:
                self._clear(ray, name)
            else:
                found.append(instance)
        return found

    def _groups(self, ray: Any) -> dict[Name, str]:
        """Of this fleet, with their states."""
        found = {}
        for entry in ray.util.placement_group_table().values():
            name = read_name(entry["name"])
            if name is not None and name.fleet == self._fleet and entry["state"] != _GONE:
                found[name] = entry["state"]
        return found

    def _actors(self, ray: Any) -> set[str]:
        """Names of all living actors of the namespace."""
        return set(ray.util.list_named_actors())

    def _look(
        self, ray: Any, names: Sequence[Name], groups: Mapping[Name, str], actors: set[str]
    ) -> dict[Name, Sight]:
        """Ask the supervisors of those, all at once."""
        asked = {}
        for name in names:
            if groups[name] == _PLACED and str(name) in actors:
                asked[name] = self._asked.pop(name, None) or self._question(ray, name)
        refs = [ref for ref in asked.values() if ref is not None]
        done = set(ray.wait(refs, num_returns=len(refs), timeout=_PATIENCE)[0]) if refs else set()
        deaths = {}
        for name, ref in asked.items():
            if ref not in done:
                self._asked[name] = ref
                continue
            try:
                self._told[name] = msgspec.json.decode(ray.get(ref), type=Report)
            except ray.exceptions.ActorUnavailableError:
                continue  # its node does not answer at the moment: what it said last counts
            except ray.exceptions.RayError as error:
                deaths[name] = _words(error)
        return {
            name: Sight(
                is_placed=groups[name] == _PLACED,
                has_actor=str(name) in actors,
                report=self._told.get(name),
                death=deaths.get(name, ""),
            )
            for name in names
        }

    def _question(self, ray: Any, name: Name) -> Any:
        try:
            return ray.get_actor(str(name)).report.remote()
        except ValueError:
            return None  # it has just gone

    def _clear(self, ray: Any, name: Name) -> None:
        with contextlib.suppress(ValueError):  # it is dead
            ray.kill(ray.get_actor(str(name)), no_restart=True)
        try:
            ray.util.remove_placement_group(ray.util.get_placement_group(str(name)))
        except ValueError:
            return  # somebody else has removed it
        log.info("Replica %s has left Ray", name.id)

    # -- the connection ---------------------------------------------------------------------------------

    def _connected(self) -> Any:
        try:
            import ray
        except ImportError:
            raise ConfigError("Pools on Ray need headrace[ray].") from None
        if not ray.is_initialized():
            try:
                ray.init(
                    address=self._config.address,
                    namespace=self._config.namespace,
                    log_to_driver=False,
                    configure_logging=False,
                )
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                raise DriverError(
                    f"There is no Ray cluster at {self._config.address}: {_words(error)}"
                ) from None
        return ray


def _bundle(resources: ResourcesConfig) -> dict[str, float]:
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": float(resources.memory)}
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": _SMALL_SHARE}


def _actor_class(ray: Any, group: Any, name: Name, resources: ResourcesConfig) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = _bundle(resources)
    return ray.remote(Supervisor).options(
        name=str(name),
        lifetime="detached",
        max_restarts=0,
        max_concurrency=4,
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        memory=bundle.get("memory"),
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=0
        ),
    )


def _driver_error(error: BaseException) -> DriverError:
    return DriverError(f"Ray cannot be asked: {_words(error)}")


def _words(error: BaseException) -> str:
    """The last line of what Ray says, which is the one that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:_MAX_REASON]
