"""What a replica says of itself: one state for all its engines, and the role it was given."""

from types import SimpleNamespace

import pytest

from headrace.config.server import ServerConfig
from headrace.core.clock import SystemClock
from headrace.core.stats import ReplicaRole, ReplicaState
from headrace.observe.metrics import Metrics
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel

LOADING, READY, DRAINING, PARKED = (
    ReplicaState.LOADING,
    ReplicaState.READY,
    ReplicaState.DRAINING,
    ReplicaState.PARKED,
)


def replica(*states, **config):
    made = Replica(ServerConfig(**config), SystemClock(), Metrics())
    made.workers.close()
    for number, state in enumerate(states):
        info = SimpleNamespace(names=(f"m{number}",), adapters=(), max_num_seqs=8, memory_bytes=7)
        client = SimpleNamespace(state=state, info=info, unready_reason=None)
        made.models[f"m{number}"] = ServedModel(client, made.metrics, made.clock)
    return made


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ([], ReplicaState.EMPTY),
        ([READY], READY),
        ([READY, READY], READY),
        ([DRAINING], DRAINING),
        ([PARKED], PARKED),
        ([READY, LOADING], LOADING),
    ],
)
def test_one_word_for_all_engines(states, whole):
    assert replica(*states).state is whole


def test_the_role_is_what_the_operator_says():
    assert replica(READY).load().role is ReplicaRole.BOTH
    report = replica(PARKED, role=ReplicaRole.PREFILL).load()
    assert (report.role, report.state) == (ReplicaRole.PREFILL, PARKED)
