"""The index of what was sent: runs, bounds, forgetting."""

import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.gateway.prefix.approximate import ApproximateIndex
from headrace.fleet.gateway.prefix.blocks import Prompt


def prompt(*hashes: int) -> Prompt:
    return Prompt(hashes=hashes, num_chars=16 * len(hashes), block_chars=16, num_tokens=len(hashes))


def test_the_longest_run_of_each_replica() -> None:
    index = ApproximateIndex(100)
    index.insert("a", prompt(1, 2, 3))
    index.insert("b", prompt(1, 2))
    index.insert("c", prompt(9, 2, 3))
    assert index.cached(prompt(1, 2, 3, 4)) == {"a": 3, "b": 2}
    assert index.cached(prompt()) == {}


def test_a_replica_is_forgotten() -> None:
    index = ApproximateIndex(100)
    index.insert("a", prompt(1))
    index.forget("a")
    index.forget("never known")
    assert index.cached(prompt(1)) == {}
    assert index.num_blocks == 0


def test_old_blocks_go_first_and_touched_ones_stay() -> None:
    index = ApproximateIndex(20)
    index.insert("a", prompt(1, 2))
    for step in range(10, 100):
        index.insert("a", prompt(step))
        index.insert("a", prompt(1, 2))
    assert index.cached(prompt(1, 2)) == {"a": 2}
    assert index.cached(prompt(10)) == {}
    assert index.num_blocks <= 20


def test_one_prompt_never_fills_more_than_half() -> None:
    index = ApproximateIndex(8)
    index.insert("a", prompt(*range(100)))
    assert index.cached(prompt(*range(100))) == {"a": 4}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Prompts as paths in a small tree: hashes that depend on all before them."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=40))
    return [
        tuple(int("1" + "".join(map(str, path[: n + 1]))) for n in range(len(path)))
        for path in paths
    ]


@given(histories(), st.integers(2, 24))
def test_runs_are_those_of_a_plain_search(paths: list[tuple[int, ...]], bound: int) -> None:
    """At any moment: within the bound, what is known is closed under prefixes, recent prompts are known."""
    index = ApproximateIndex(bound)
    for path in paths:
        index.insert("a", prompt(*path))
        assert index.num_blocks <= 2 * max(1, bound // 2)
        assert index.cached(prompt(*path)) == {"a": min(len(path), max(1, bound // 2))}
        for other in paths:
            singles = [bool(index._replicas["a"].longest_run([h])) for h in other]
            run = singles.index(False) if False in singles else len(singles)
            assert index.cached(prompt(*other)).get("a", 0) == run
            assert not any(singles[run:])


def distinct(count: int) -> Iterator[Prompt]:
    for number in range(count):
        yield prompt(*range(number * 8, number * 8 + 8))


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_memory_stays_flat_over_distinct_prompts(count: int) -> None:
    index = ApproximateIndex(4_096)
    for number, one in enumerate(distinct(count)):
        index.cached(one)
        index.insert(f"r{number % 4}", one)
        if number == count // 10:
            before = resident()
    assert index.num_blocks <= 4 * 4_096
    assert resident() - before < 8 * 1024
