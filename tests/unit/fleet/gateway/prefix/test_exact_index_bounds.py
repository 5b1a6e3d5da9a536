"""The exact index: places, bounds, and what it does with what it cannot place."""

import resource

import pytest

from headrace.fleet.gateway.prefix.exact import ExactIndex
from headrace.fleet.gateway.prefix.kv_wire import Cleared, Removed, Stored
from headrace.fleet.gateway.prefix.token_chain import TokenPrompt, ids

HERE = ("GPU", 0)


def stored(
    *hashes: int,
    parent: int | None = None,
    place: tuple[str, int] = HERE,
    size: int = 2,
    is_partial: bool = False,
) -> Stored:
    """Blocks whose tokens are their hash, over and over."""
    tokens = tuple(one for one in hashes for _ in range(size))
    return Stored(
        hashes=hashes,
        parent=parent,
        token_ids=tokens,
        block_size=size,
        place=place,
        is_partial=is_partial,
    )


def cached(index: ExactIndex, *blocks: int) -> int:
    return index.cached("r", TokenPrompt(ids([one for one in blocks for _ in range(2)])), "m")


def fed(*events: object, max_blocks: int = 100) -> ExactIndex:
    index = ExactIndex(max_blocks)
    for event in events:
        index.apply("r", event)  # type: ignore[arg-type]
    return index


def test_a_run_from_the_start() -> None:
    index = fed(stored(1, 2), stored(3, parent=2))
    assert cached(index, 1, 2, 3, 4) == 6
    assert cached(index, 1, 9) == 2
    assert cached(index, 2, 3) == 0
    assert index.cached("unknown", TokenPrompt(ids([1, 1])), "m") == 0


def test_a_block_in_two_places_stays_until_both_are_gone() -> None:
    index = fed(stored(1), stored(1, place=("CPU", 0)), Removed(hashes=(1,), place=HERE))
    assert cached(index, 1) == 2
    index.apply("r", Removed(hashes=(1, 5), place=("CPU", 0)))
    index.apply("r", Removed(hashes=(1,), place=("never", 7)))
    assert cached(index, 1) == 0
    assert index.num_blocks == 0


def test_told_twice_is_removed_once() -> None:
    index = fed(stored(1), stored(1), Removed(hashes=(1,), place=HERE))
    assert cached(index, 1) == 0


def test_blocks_without_a_known_parent_are_left_out() -> None:
    index = fed(stored(5, parent=4))
    assert cached(index, 5) == 0
    assert index.num_unplaced("r") == 1


def test_a_full_index_leaves_out_what_comes_last() -> None:
    index = fed(stored(*range(10)), stored(11, parent=9), max_blocks=8)
    assert index.num_blocks == 8
    assert cached(index, *range(10)) == 16
    index.apply("r", Removed(hashes=(7,), place=HERE))
    index.apply("r", stored(20))
    assert cached(index, 20) == 2


def test_all_is_cleared_by_a_word_or_another_block_size() -> None:
    assert fed(stored(1), Cleared()).num_blocks == 0
    index = fed(stored(1), stored(2, size=4))
    assert cached(index, 1) == 0
    assert index.block_size("r") == 4


def test_layers_with_a_window_do_not_say_what_is_cached() -> None:
    window = ("GPU", 1)
    index = fed(
        stored(1, 2), stored(7, place=window, size=8, is_partial=True), stored(3, parent=2), stored(1, place=window, is_partial=True),
        Removed(hashes=(3,), place=HERE),
    )  # fmt: skip
    assert index.block_size("r") == 2
    assert cached(index, 1, 2, 3) == 4
    index.apply("r", Removed(hashes=(1,), place=HERE))
    assert cached(index, 1) == 0


def test_layers_with_a_window_count_where_there_are_no_others() -> None:
    index = fed(stored(1, 2, is_partial=True))
    assert cached(index, 1, 2) == 4
    index.apply("r", stored(5, place=("GPU", 1)))
    assert (cached(index, 1, 2), cached(index, 5)) == (0, 2)


def test_places_are_bounded() -> None:
    index = fed(*(stored(n, place=("GPU", n)) for n in range(100)))
    assert index.num_blocks == 16


def test_a_replica_is_purged_or_forgotten() -> None:
    index = fed(stored(1))
    index.purge("r")
    index.purge("other")
    assert cached(index, 1) == 0
    index.forget("r")
    assert index.block_size("r") == 0


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_memory_stays_flat_over_distinct_prompts(count: int) -> None:
    index = ExactIndex(2_048)
    for number in range(count):
        # A replica whose removals are lost: the bound holds all the same.
        index.apply("r", stored(number % 2**31))
        if number % 3:
            index.apply("r", Removed(hashes=(number,), place=HERE))
        cached(index, number % 2**31)
        if number == count // 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert index.num_blocks <= 2_048
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * 1024
