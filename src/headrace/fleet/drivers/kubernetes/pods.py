"""What pods and Deployments say of replicas: pure, and lenient to whatever else they hold."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from ipaddress import ip_address
from typing import Any, Final

from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaRole
from headrace.fleet.drivers.protocol import Instance, InstanceState

FLEET_LABEL: Final = "headrace.dev/fleet"
POOL_LABEL: Final = "headrace.dev/pool"
ROLE_LABEL: Final = "headrace.dev/role"
VERSION_LABEL: Final = "headrace.dev/version"
COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
#: Of a pod that is to go: less than anybody else would set.
GOES_FIRST: Final = "-2000000000"
_UNPLACED: Final = "unplaced"
#: A Deployment that is to have more than so many new pods is believed no further.
_MAX_UNPLACED: Final = 1000

Object = Mapping[str, Any]


def instances_of(
    pods: Sequence[Object], deployments: Sequence[Object], *, port: int, token: Secret | None
) -> list[Instance]:
    """Every pod, and every replica that a Deployment is to have and no pod stands for yet."""
    found = [instance_of(pod, port=port, token=token) for pod in pods]
    instances = [instance for instance in found if instance is not None]
    for deployment in deployments:
        pool = label(deployment, POOL_LABEL)
        if pool:
            own = [i for i in instances if i.pool == pool and _counts(i)]
            missing = replicas_of(deployment) - len(own)
            instances += unplaced(name_of(deployment), pool, missing)
    return instances


def unplaced(deployment: str, pool: str, count: int) -> Iterator[Instance]:
    """Replicas that are asked for and have no pod yet."""
    for number in range(min(count, _MAX_UNPLACED)):
        yield Instance(
            id=f"{deployment}-{number}-{_UNPLACED}",
            pool=pool,
            version="",
            revision="",
            state=InstanceState.PENDING,
            reason="Kubernetes has not made its pod yet",
        )


def is_unplaced(instance_id: str) -> bool:
    """It names a replica without a pod."""
    return instance_id.endswith(f"-{_UNPLACED}")


def instance_of(pod: Object, *, port: int, token: Secret | None) -> Instance | None:
    """None: it is no replica of a pool. Its revision is empty: rolling updates are its Deployment's."""
    pool, name = label(pod, POOL_LABEL), name_of(pod)
    if not pool or not name:
        return None
    status = table(pod.get("status"))
    address = str(status.get("podIP") or "")
    state, reason = _state_of(pod, status, address)
    spec = None
    if state in (InstanceState.RUNNING, InstanceState.STOPPING) and address:
        spec = _spec_of(pod, address, port, token)
        if spec is None:
            state, reason = InstanceState.PENDING, f"its address '{address[:60]}' is none"
    return Instance(
        id=name,
        pool=pool,
        version=label(pod, VERSION_LABEL),
        revision="",
        state=state,
        spec=spec,
        started=_seconds(table(pod.get("metadata")).get("creationTimestamp")),
        reason=reason,
    )


def is_leaving(pod: Object) -> bool:
    """It was told to end."""
    return bool(table(pod.get("metadata")).get("deletionTimestamp"))


def is_marked(pod: Object) -> bool:
    """It was chosen to go first, and has not gone."""
    annotations = table(table(pod.get("metadata")).get("annotations"))
    return annotations.get(COST_ANNOTATION) == GOES_FIRST and not is_leaving(pod)


def has_ended(pod: Object) -> bool:
    """Its Deployment has replaced it already, and it only lies about."""
    return table(pod.get("status")).get("phase") in ("Failed", "Succeeded")


def name_of(thing: Object) -> str:
    """Its metadata.name."""
    return str(table(thing.get("metadata")).get("name") or "")


def label(thing: Object, name: str) -> str:
    """Empty: it has none."""
    return str(table(table(thing.get("metadata")).get("labels")).get(name) or "")


def replicas_of(thing: Object) -> int:
    """`spec.replicas` of a Deployment, or of its Scale; 1 where nothing is said, as the API has it."""
    told = table(thing.get("spec")).get("replicas", 1)
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else 0


def table(value: object) -> Mapping[str, Any]:
    """What should be an object; empty where it is none."""
    return value if isinstance(value, dict) else {}


def facts_of(pod: Object) -> dict[str, str]:
    """For an operator."""
    status, spec = table(pod.get("status")), table(pod.get("spec"))
    return {
        "pod": name_of(pod),
        "node": str(spec.get("nodeName") or ""),
        "phase": str(status.get("phase") or ""),
        "address": str(status.get("podIP") or ""),
        "restarts": str(sum(_restarts(status))),
        "reason": _waiting(status) or str(status.get("message") or ""),
    }


def _state_of(pod: Object, status: Object, address: str) -> tuple[InstanceState, str]:
    if is_leaving(pod):
        return InstanceState.STOPPING, ""
    if has_ended(pod):
        words = (status.get("reason"), status.get("message"))
        return InstanceState.FAILED, ": ".join(str(word) for word in words if word) or "it ended"
    if status.get("phase") == "Running" and address:
        # One that crashes is started again in its place; that it does not serve is for probes to say.
        return InstanceState.RUNNING, _waiting(status)
    return InstanceState.PENDING, _waiting(status) or _unscheduled(status) or "its pod starts"


def _spec_of(pod: Object, address: str, port: int, token: Secret | None) -> ReplicaSpec | None:
    role = label(pod, ROLE_LABEL)
    try:
        host = f"[{address}]" if ip_address(address).version == 6 else address
        return ReplicaSpec(
            url=f"http://{host}:{port}",
            id=name_of(pod),
            role=ReplicaRole(role) if role in set(ReplicaRole) else ReplicaRole.BOTH,
            version=label(pod, VERSION_LABEL),
            api_key=token,
            peer_token=token,
        )
    except (ValueError, ConfigError):
        return None


def _waiting(status: Object) -> str:
    """Why a container does not run: CrashLoopBackOff, ImagePullBackOff, …"""
    for container in _containers(status):
        waiting = table(table(container.get("state")).get("waiting"))
        if waiting:
            words = (waiting.get("reason"), waiting.get("message"))
            return ": ".join(str(word) for word in words if word)[:300]
    return ""


def _unscheduled(status: Object) -> str:
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        found = table(condition)
        if found.get("type") == "PodScheduled" and found.get("status") == "False":
            return str(found.get("message") or found.get("reason") or "")[:300]
    return ""


def _containers(status: Object) -> Iterator[Object]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        statuses = status.get(kind)
        yield from map(table, statuses if isinstance(statuses, list) else ())


def _restarts(status: Object) -> Iterator[int]:
    for container in _containers(status):
        count = container.get("restartCount")
        yield count if isinstance(count, int) else 0


def _counts(instance: Instance) -> bool:
    return instance.state not in (InstanceState.STOPPING, InstanceState.FAILED)


def _seconds(text: object) -> float:
    """Of an RFC 3339 time; 0.0 for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
