"""Replicas of one half of a request get no whole ones."""

import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.core.stats import ReplicaRole
from headrace.fleet.gateway.build import make_replica
from headrace.fleet.registry import Registry


@pytest.mark.parametrize(
    ("role", "serves"),
    [(ReplicaRole.BOTH, True), (ReplicaRole.DECODE, True), (ReplicaRole.PREFILL, False)],
)
async def test_only_those_that_answer_serve(role, serves):
    config = FleetConfig()
    registry = Registry(HealthConfig(), FakeClock(), lambda spec: make_replica(config, spec))
    registry.reconcile([ReplicaSpec(url="http://h:1", models=("m",), role=role)])
    for replica in registry:
        replica.ready_since = 0.0
    assert bool(registry.serving("m")) is serves
