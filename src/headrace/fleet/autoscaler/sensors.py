"""The edge that reads the gateway: registry, queue, and requests as they come and end."""

from collections.abc import Iterable, Mapping

from headrace.config.fleet.scaling import AutoscalerConfig
from headrace.core.clock import Clock
from headrace.core.stats import ReplicaRole, ReplicaState
from headrace.fleet.autoscaler.gather import QueueLook, ReplicaLook, Sums, gather
from headrace.fleet.autoscaler.groups import GroupKey
from headrace.fleet.autoscaler.members import Facts, Phase
from headrace.fleet.autoscaler.names import expected_names, fits
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.traffic import Ended
from headrace.fleet.autoscaler.values import Signals
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket
from headrace.fleet.gateway.replica_meter import CANCELLED, OK, REFUSED
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.observe.gateway_metrics import REPLICA_REQUESTS
from headrace.observe.metrics import Metrics

#: Outcomes of tries that say nothing against a replica.
_BLAMELESS = (OK, REFUSED, CANCELLED, "superseded", "overloaded")
#: Lanes whose groups are remembered.
MAX_LANES = 2000


class Sensors:
    """One gateway's. A part of FlowWatcher but for `cold`: requests are counted at the groups that may serve them."""

    def __init__(
        self,
        planner: Planner,
        registry: Registry,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._planner = planner
        self._registry = registry
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._sums: dict[GroupKey, Sums] = {}
        self._names: dict[GroupKey, tuple[str, ...]] = {}
        self._lanes: dict[str, tuple[GroupKey, ...]] = {}
        self._turn = 0
        self.apply(planner.config)

    def apply(self, config: AutoscalerConfig) -> None:
        """The planner has other pools or settings. What was counted stays where windows stay."""
        now, kept = self._clock.monotonic(), {}
        for key, pools in self._planner.groups.items():
            old = self._sums.get(key)
            weight = config.of(pools[0].name).tokens.prompt_weight
            if old is None or (old.window, old.prompt_weight) != (config.window, weight):
                capacity = None if old is None else old.capacity.tokens_per_second
                old = Sums(now, config.window, weight, key.role)
                old.capacity.tokens_per_second = capacity
            kept[key] = old
        self._sums = kept
        self._lanes.clear()

    @property
    def sums(self) -> Mapping[GroupKey, Sums]:
        """By group."""
        return self._sums

    # -- requests ---------------------------------------------------------------------------------

    def arrived(self, ticket: Ticket) -> None:
        """Part of FlowWatcher."""
        now = self._clock.monotonic()
        for key in self._one_of_each_role(self.groups_of(ticket.lane)):
            self._sums[key].traffic.arrived(now, ticket.prompt_tokens, ticket.output_tokens)

    def ended(self, slot: Slot) -> None:
        """Part of FlowWatcher. One that was not answered is no sample, and no work."""
        if not slot.replica_id or slot.prompt_tokens is None or slot.output_tokens is None:
            return
        now = self._clock.monotonic()
        member = self._planner.members.get(slot.replica_id)
        replica = self._registry.get(slot.replica_id)
        warm_at = None if replica is None else replica.ready_since
        request = Ended(
            arrival=slot.arrived,
            prompt_tokens=slot.prompt_tokens,
            output_tokens=slot.output_tokens,
            asked_prompt=slot.ticket.prompt_tokens,
            asked_output=slot.ticket.output_tokens,
            ttft=slot.ttft,
            itl=slot.itl,
            latency=now - slot.arrived,
            is_sample=slot.cold_seconds == 0.0
            and warm_at is not None
            and slot.arrived >= warm_at + self._planner.config.warmup,
        )
        for key in self.groups_of(slot.ticket.lane):
            is_its = member is not None and member.instance.pool in {
                pool.name for pool in self._planner.groups.get(key, ())
            }
            traffic = self._sums[key].traffic
            if is_its or key.role is ReplicaRole.PREFILL:
                traffic.ended(now, request)
            elif (
                member is None and replica is not None
            ):  # of no pool: it stands in the file, or was added
                traffic.ended_elsewhere(now, request.asked_prompt, request.asked_output)

    def groups_of(self, lane: str) -> tuple[GroupKey, ...]:
        """Groups that may serve a lane."""
        found = self._lanes.get(lane)
        if found is None:
            if len(self._lanes) >= MAX_LANES:
                self._lanes.clear()
            found = self._lanes[lane] = tuple(
                key
                for key, pools in self._planner.groups.items()
                if any(fits(lane, self.names_of(key), pool.version, pool.labels) for pool in pools)
            )
        return found

    def names_of(self, key: GroupKey) -> tuple[str, ...]:
        """As its replicas tell them, else as they can be expected."""
        told = self._names.get(key)
        if told is not None:
            return told
        pools = self._planner.groups.get(key, ())
        return tuple(dict.fromkeys(name for pool in pools for name in expected_names(pool)))

    def _one_of_each_role(self, keys: Iterable[GroupKey]) -> list[GroupKey]:
        """Groups of several versions serve a lane in turn."""
        by_role: dict[ReplicaRole, list[GroupKey]] = {}
        for key in keys:
            by_role.setdefault(key.role, []).append(key)
        self._turn += 1
        return [found[self._turn % len(found)] for found in by_role.values()]

    # -- looks ------------------------------------------------------------------------------------

    def facts(self, states: Mapping[str, ReplicaState]) -> dict[str, Facts]:
        """What the gateway knows of every replica. `states` are those that did not tell the prober."""
        sent: dict[str, int] = {}
        errors: dict[str, int] = {}
        for (replica_id, outcome), count in self._metrics.values(REPLICA_REQUESTS):
            sent[replica_id] = sent.get(replica_id, 0) + int(count)
            if outcome not in _BLAMELESS:
                errors[replica_id] = errors.get(replica_id, 0) + int(count)
        return {
            replica.id: Facts(
                is_ready=replica.ready_since is not None,
                ready_since=replica.ready_since,
                state=states.get(replica.id),
                is_draining=replica.is_draining,
                num_requests=max(replica.load.num_requests, _told(replica)),
                num_sent=sent.get(replica.id, 0),
                num_errors=errors.get(replica.id, 0),
            )
            for replica in self._registry
        }

    def signals(self) -> dict[GroupKey, Signals]:
        """Of all groups whose drivers could be asked."""
        now, waits = self._clock.monotonic(), self._admission.waits()
        self._learn_names()
        queues: dict[GroupKey, QueueLook] = {}
        for lane, (size, wait) in waits.items():
            for key in self._first_of_each_role(self.groups_of(lane)):
                old = queues.get(key, QueueLook(0, 0.0))
                queues[key] = QueueLook(old.size + size, max(old.wait or 0.0, wait))
        found = {}
        for key in self._planner.seen_groups():
            looks = [
                _look(replica)
                for member in self._planner.of_group(key)
                if member.phase is Phase.READY
                and (replica := self._registry.get(member.id)) is not None
            ]
            slo = self._planner.config.of(self._planner.groups[key][0].name).slo
            counts = self._planner.counts(key)
            queue = queues.get(key, QueueLook())
            found[key] = gather(now, looks, queue, self._sums[key], counts, slo)
        return found

    def _first_of_each_role(self, keys: Iterable[GroupKey]) -> list[GroupKey]:
        """What waits counts once, where something is ready already; the queue is not told which version it will get."""
        found: dict[ReplicaRole, GroupKey] = {}
        for key in sorted(keys, key=lambda key: not self._is_ready(key)):
            found.setdefault(key.role, key)
        return list(found.values())

    def _is_ready(self, key: GroupKey) -> bool:
        return any(member.phase is Phase.READY for member in self._planner.of_group(key))

    def _learn_names(self) -> None:
        for key in self._planner.groups:
            told = [
                name
                for member in self._planner.of_group(key)
                if (replica := self._registry.get(member.id)) is not None
                for name in replica.models
            ]
            names = tuple(dict.fromkeys(told))
            if names and names != self._names.get(key):
                self._names[key] = names
                self._lanes.clear()


def _told(replica: Replica) -> int:
    report = replica.report
    if report is None:
        return 0
    return (report.num_running or 0) + (report.num_waiting or 0)


def _look(replica: Replica) -> ReplicaLook:
    """Its word, and what it was sent since it gave it."""
    report = replica.report
    if report is None or report.num_running is None:
        return ReplicaLook(is_fresh=False)
    waiting = report.num_waiting or 0
    total = max(report.num_running + waiting, replica.load.num_requests)
    # Not every server tells how many it runs at once: its operator may have.
    slots = report.max_num_seqs or replica.spec.max_concurrency
    running = total - waiting if slots is None else min(slots, total)
    return ReplicaLook(
        num_running=running,
        num_waiting=total - running,
        slots=slots,
        kv_usage=report.kv_usage,
        utilisation=report.busy,
    )
