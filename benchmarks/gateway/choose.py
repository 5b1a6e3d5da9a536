"""Microseconds of CPU per routing decision, policy by policy: `python benchmarks/gateway/choose.py [candidates]`."""

import sys
from random import Random
from statistics import median
from time import process_time

from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.routing.values import Candidate, Query

ROUNDS, CALLS = 15, 200


def candidates(count: int) -> list[Candidate]:
    chance = Random(1)
    return [
        Candidate(
            id=f"10.0.0.{place}:8000",
            weight=chance.choice([1.0, 1.0, 2.0]),
            num_requests=chance.randrange(100),
            prefill_tokens=chance.randrange(20_000),
            decode_tokens=chance.randrange(20_000),
            cached_tokens=chance.choice([0, 0, 3000, 4000]),
            ttft=chance.random(),
            tpot=chance.random() / 50,
        )
        for place in range(count)
    ]


def microseconds(policy: RoutingPolicy, count: int) -> float:
    config = RoutingConfig(policy=policy)
    replicas = candidates(count)
    queries = [
        Query(session=f"s{n}", prompt_tokens=4096, output_tokens=256, number=n, draw=n / CALLS)
        for n in range(CALLS)
    ]
    found = []
    for _ in range(ROUNDS):
        start = process_time()
        for query in queries:
            choose(config, query, replicas)
        found.append((process_time() - start) / CALLS * 1e6)
    return median(found)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    print(f"| policy | µs with {count} candidates |")
    print("|---|--:|")
    for policy in RoutingPolicy:
        print(f"| {policy} | {microseconds(policy, count):.1f} |")


if __name__ == "__main__":
    main()
