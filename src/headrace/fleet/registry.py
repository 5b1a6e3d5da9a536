"""All replicas there are. One list of specs in, and what changed out; states live on through it."""

import logging
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import ReplicaSpec, check_names
from headrace.core.clock import Clock
from headrace.fleet.replica import Replica, Standing

log = logging.getLogger("headrace.fleet")

#: Fields that make a spec another server, or another way to speak to it.
_OF_ITS_SERVER = ("url", "dialect", "api", "region", "api_key", "peer_token")


class Registry:
    """Replicas by id. A replica that left the list finishes what it has, and is then forgotten."""

    def __init__(
        self, health: HealthConfig, clock: Clock, make: Callable[[ReplicaSpec], Replica]
    ) -> None:
        """`make` builds a replica with its connections."""
        self.health = health
        self._clock = clock
        self._make = make
        self._replicas: dict[str, Replica] = {}
        self._leaving: list[Replica] = []
        self._by_operator: dict[str, ReplicaSpec] = {}
        self._listed: tuple[ReplicaSpec, ...] = ()
        self.startable: frozenset[str] = frozenset()
        """Names of models for which replicas can be started: requests for them wait, and are not refused."""
        self.is_asleep = False
        """Some of them have no replica on purpose: the next request has one started."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a replica came, went or may serve again."""

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def apply(self, health: HealthConfig, timeouts: TimeoutConfig) -> None:
        """The configuration was read again."""
        self.health = health
        for replica in self._replicas.values():
            replica.apply(health, timeouts)

    def get(self, replica_id: str) -> Replica | None:
        """The replica of this name."""
        return self._replicas.get(replica_id)

    # -- who there is -----------------------------------------------------------------------------

    def reconcile(self, specs: Iterable[ReplicaSpec]) -> None:
        """Make it so that exactly these are there, and those that an operator added.

        Raises ConfigError, and changes nothing, if two have one name, or one cannot be made.
        """
        listed = tuple(specs)
        check_names(listed)
        self._apply(listed, self._by_operator)

    def is_listed(self, replica_id: str) -> bool:
        """It stands in a file, or another source tells of it: it is there as long as that does."""
        return any(spec.name == replica_id for spec in self._listed)

    def is_added(self, replica_id: str) -> bool:
        """An operator added it, or changed it."""
        return replica_id in self._by_operator

    def add(self, spec: ReplicaSpec) -> None:
        """An operator's own replica, or a changed one of the same name.

        Raises ConfigError, and changes nothing, for one that cannot be made.
        """
        self._apply(self._listed, {**self._by_operator, spec.name: spec})

    def set_draining(self, replica: Replica, is_draining: bool) -> None:
        """It gets nothing new, or takes part again."""
        replica.is_draining = is_draining
        self.on_change()

    def remove(self, replica_id: str) -> bool:
        """Drain and forget a replica that an operator added, so that the listed one of that name counts again, if there
        is one; a listed one is only drained.

        False if there is none of this name.
        """
        replica = self._replicas.get(replica_id)
        if replica is None:
            return False
        if replica_id in self._by_operator:
            others = {name: s for name, s in self._by_operator.items() if name != replica_id}
            self._apply(self._listed, others)
        else:
            self.set_draining(replica, True)
        return True

    def forget_idle(self) -> None:
        """Let go of those that left and have nothing to do any more."""
        for replica in [replica for replica in self._leaving if replica.load.is_idle]:
            self._leaving.remove(replica)
            replica.pool.close()
            log.info("Replica %s has left", replica.id)

    def close(self) -> None:
        """Close every connection that is idle."""
        for replica in [*self._replicas.values(), *self._leaving]:
            replica.pool.close()

    def _apply(self, listed: tuple[ReplicaSpec, ...], by_operator: dict[str, ReplicaSpec]) -> None:
        wanted = {**{spec.name: spec for spec in listed}, **by_operator}
        # All new ones are made before anything changes: making one may fail.
        made = {
            replica_id: self._make(spec)
            for replica_id, spec in wanted.items()
            if (old := self._replicas.get(replica_id)) is None or _is_another(old.spec, spec)
        }
        self._listed, self._by_operator = listed, by_operator
        gone = [i for i in self._replicas if i not in wanted or i in made]
        changed = [r for r in self._replicas.values() if r.id not in gone]
        changed = [replica for replica in changed if replica.spec != wanted[replica.id]]
        for replica_id in gone:
            self._leave(replica_id)
        for replica in changed:
            replica.spec = wanted[replica.id]
        for replica_id, replica in made.items():
            log.info("Replica %s at %s", replica_id, replica.spec.url)
        self._replicas.update(made)
        if gone or changed or made:
            self.on_change()

    def _leave(self, replica_id: str) -> None:
        replica = self._replicas.pop(replica_id)
        replica.is_draining = True
        self._leaving.append(replica)

    # -- who can serve ----------------------------------------------------------------------------

    def serving(self, model: str) -> list[Replica]:
        """Those that serve this model and can be used now.

        If requests have ejected so many that less than `panic_share` would be left, or none, the ejected ones are
        used too: a gateway that gives up is worse than one that tries.
        """
        now = self._clock.monotonic()
        ready, ejected = [], []
        for replica in self._replicas.values():
            if model not in replica.models or not replica.answers:
                continue
            standing = replica.standing(now)
            if standing is Standing.READY:
                ready.append(replica)
            elif standing is Standing.EJECTED:
                ejected.append(replica)
        if ejected and (
            not ready or len(ready) < self.health.panic_share * (len(ready) + len(ejected))
        ):
            return ready + ejected
        return ready

    def ejected(self, model: str) -> list[Replica]:
        """Those that serve this model and are kept from it only by requests that failed."""
        now = self._clock.monotonic()
        return [
            replica
            for replica in self._replicas.values()
            if model in replica.models
            and replica.answers
            and replica.standing(now) is Standing.EJECTED
        ]

    def models(self) -> dict[str, list[Replica]]:
        """Every name that any replica serves, and who serves it, ready or not; nobody, while none has been started."""
        found: dict[str, list[Replica]] = {name: [] for name in self.startable}
        for replica in self._replicas.values():
            for model in replica.models:
                found.setdefault(model, []).append(replica)
        return found

    def slowness(self, replicas: Iterable[Replica]) -> dict[str, float]:
        """By id: how many times slower than the median per unit of work, where that is beyond the bound."""
        times = {r.id: r.latency.work_time for r in replicas}
        known = [time for time in times.values() if time is not None]
        if len(known) < 3:  # a median of two does not tell the odd one
            return {}
        middle = median(known)
        return {
            replica_id: time / middle
            for replica_id, time in times.items()
            if time is not None and middle > 0 and time > self.health.outlier_factor * middle
        }


def _is_another(old: ReplicaSpec, new: ReplicaSpec) -> bool:
    """The name now means another server."""
    return any(getattr(old, name) != getattr(new, name) for name in _OF_ITS_SERVER)
