"""What pods say of replicas, whatever else they hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.stats import ReplicaRole
from headrace.fleet.drivers.kubernetes.pods import (
    FLEET_LABEL,
    POOL_LABEL,
    ROLE_LABEL,
    facts_of,
    instance_of,
    instances_of,
    is_marked,
    replicas_of,
)
from headrace.fleet.drivers.protocol import InstanceState

LABELS = {FLEET_LABEL: "shop", POOL_LABEL: "chat"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = (
    "metadata", "labels", "annotations", "name", "deletionTimestamp", "creationTimestamp", "status",
    "phase", "podIP", "containerStatuses", "state", "waiting", "conditions", "type", "spec",
    "replicas", POOL_LABEL, ROLE_LABEL,
)  # fmt: skip
THINGS = st.recursive(
    JSON | st.sampled_from(["chat", "Running", "10.0.0.1", "PodScheduled"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=12,
).filter(lambda thing: isinstance(thing, dict))


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "shop-chat-1", "labels": LABELS, **metadata}, "status": status}


WAITING = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (pod({"phase": "Pending"}), "pending", "its pod starts"),
        (pod({"phase": "Pending", "conditions": [UNSCHEDULED]}), "pending", "0/3 nodes are available"),
        (
            pod({"phase": "Pending", "podIP": "10.0.0.7", "containerStatuses": [WAITING]}),
            "pending", "ImagePullBackOff: no such image",
        ),
        (pod({"phase": "Running"}), "pending", "its pod starts"),
        (pod({"phase": "Running", "podIP": "10.0.0.7"}), "running", ""),
        (
            pod({"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [WAITING]}),
            "running", "ImagePullBackOff: no such image",
        ),
        (pod({"phase": "Running", "podIP": "10.0.0.7"}, deletionTimestamp="x"), "stopping", ""),
        (pod({"phase": "Running", "podIP": "no address"}), "pending", "its address 'no address' is none"),
        (pod({"phase": "Failed", "reason": "Evicted"}), "failed", "Evicted"),
        (pod({"phase": "Succeeded"}), "failed", "it ended"),
    ],
)  # fmt: skip
def test_states(found: dict[str, Any], state: str, reason: str) -> None:
    instance = instance_of(found, port=8000, token=None)
    assert instance is not None
    assert (instance.state, instance.reason) == (state, reason)
    assert (instance.spec is not None) == (state in ("running", "stopping"))


def test_addresses_and_roles() -> None:
    found = pod({"phase": "Running", "podIP": "fd00::7"}, labels={**LABELS, ROLE_LABEL: "decode"})
    instance = instance_of(found, port=9000, token=None)
    assert instance is not None
    assert instance.spec is not None
    assert instance.spec.url == "http://[fd00::7]:9000"
    assert instance.spec.role is ReplicaRole.DECODE
    odd = pod({"phase": "Running", "podIP": "10.0.0.7"}, labels={**LABELS, ROLE_LABEL: "odd"})
    instance = instance_of(odd, port=9000, token=None)
    assert instance is not None
    assert instance.spec is not None
    assert instance.spec.role is ReplicaRole.BOTH


def test_replicas_without_a_pod_are_counted() -> None:
    deployment = {"metadata": {"name": "shop-chat", "labels": LABELS}, "spec": {"replicas": 3}}
    pods = [
        pod({"phase": "Running", "podIP": "10.0.0.7"}),
        pod({"phase": "Failed"}, name="b"),
        pod({"phase": "Running", "podIP": "10.0.0.8"}, name="c", deletionTimestamp="x"),
    ]
    found = instances_of(pods, [deployment], port=8000, token=None)
    states = [instance.state for instance in found]
    assert states.count(InstanceState.PENDING) == 2
    assert len({instance.id for instance in found}) == 5
    assert replicas_of({"spec": {}}) == 1
    assert replicas_of({"spec": {"replicas": "many"}}) == 0
    endless = {**deployment, "spec": {"replicas": 2**60}}
    assert len(instances_of([], [endless], port=8000, token=None)) == 1000


@given(things=st.lists(THINGS, max_size=3), more=st.lists(THINGS, max_size=2))
def test_any_objects_are_read(things: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    for instance in instances_of(things, more, port=8000, token=None):
        assert instance.pool
    for thing in things:
        assert isinstance(is_marked(thing), bool)
        assert all(isinstance(value, str) for value in facts_of(thing).values())
