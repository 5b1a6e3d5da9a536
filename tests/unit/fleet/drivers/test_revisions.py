"""A revision changes with what a replica is started with, and with nothing else."""

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import Price
from headrace.core.stats import ReplicaRole
from headrace.fleet.drivers.revision import revision_of

POOL = PoolConfig(name="chat", model="smollm2-135m", serve={"max-num-seqs": 8, "alias": "small"})


@pytest.mark.parametrize(
    "change",
    [
        {"model": "gemma-3-270m"},
        {"version": "2"},
        {"role": ReplicaRole.DECODE},
        {"serve": {"max-num-seqs": 16, "alias": "small"}},
        {"serve": {}},
    ],
    ids=str,
)
def test_what_it_is_started_with_counts(change: dict[str, Any]) -> None:
    assert revision_of(replace(POOL, **change)) != revision_of(POOL)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"min_replicas": 2, "max_replicas": 9, "warm_replicas": 3},
        {"hourly_cost": 2.5, "price": Price(input=1.0)},
        {"labels": {"zone": "b"}},
        {"serve": {"alias": "small", "max-num-seqs": 8}},
    ],
    ids=str,
)
def test_how_many_and_what_for_does_not(change: dict[str, Any]) -> None:
    assert revision_of(replace(POOL, **change)) == revision_of(POOL)
