"""What a replica on Ray is, from what its group, its actor and its supervisor say: pure values."""

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.secret import Secret
from headrace.fleet.drivers.launching import recalled
from headrace.fleet.drivers.protocol import Instance, InstanceState
from headrace.fleet.drivers.ray.naming import Name
from headrace.fleet.drivers.ray.supervisor import Report

#: Seconds after which a group without an actor is one that lost it, and not one that is being made.
MAKING_SECONDS = 15.0


class Sight(Struct, frozen=True, kw_only=True):
    """One look at a replica."""

    is_placed: bool
    """Ray has found a node with room for it."""
    has_actor: bool
    report: Report | None = None
    """The last one that its supervisor gave."""
    death: str = ""
    """Why its actor is dead."""


def instance_of(name: Name, sight: Sight, now: float) -> Instance | None:
    """None: it was told to stop and has ended. `now` is `Clock.wall`."""
    instance = Instance(
        id=name.id,
        pool=name.pool,
        version=name.version,
        revision=name.revision,
        state=InstanceState.PENDING,
        started=name.started,
    )
    report = sight.report
    if sight.death or not sight.has_actor:
        if not sight.death and report is None and now - name.started < MAKING_SECONDS:
            return replace(instance, reason="it is being made")
        reason = sight.death or "its actor is gone: its node was lost, or somebody killed it"
        return replace(instance, state=InstanceState.FAILED, reason=reason)
    if report is None:
        reason = "its actor starts" if sight.is_placed else "no node has room for it yet"
        return replace(instance, reason=reason)
    if not report.is_alive:
        if report.is_stopping:
            return None
        return replace(instance, state=InstanceState.FAILED, reason=report.reason)
    spec = recalled(
        report.spec.encode(),
        replica_id=name.id,
        url=report.url,
        token=Secret(report.token),
        version=name.version,
    )
    state = InstanceState.STOPPING if report.is_stopping else InstanceState.RUNNING
    return replace(instance, state=state, spec=replace(spec, api_key=Secret(report.token)))
