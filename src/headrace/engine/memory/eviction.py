"""Which blocks a sequence gives up when it may keep only so many: pure.

Heavy hitters (Zhang et al., 2023, "H2O"): those that attention fell on least go first; the beginning
(sinks: Xiao et al., 2023) and the recent part stay. The rest of the budget is shared half and half.
"""

from collections.abc import Sequence

from headrace.engine.memory.block_table import GIVEN_BACK


def num_kept(num_tokens: int, num_sinks: int, block_size: int) -> int:
    """Full blocks that a budget of `num_tokens` allows: the sinks' blocks and at least one more."""
    return max(-(-num_tokens // block_size), -(-num_sinks // block_size) + 1)


def blocks_to_drop(
    table: Sequence[int], mass: Sequence[float], num_full: int, num_sinks: int, budget: int
) -> list[int]:
    """Entries, ascending, of the first `num_full` of the table that go, so that `budget` of them remain.

    `mass[i]` is what attention fell on entry i, `num_sinks` the first entries that stay. Of equal ones the
    older goes.
    """
    kept = [index for index in range(num_full) if table[index] != GIVEN_BACK]
    excess = len(kept) - budget
    if excess <= 0:
        return []
    num_recent = max(1, (budget - num_sinks) // 2)
    candidates = [index for index in kept[: len(kept) - num_recent] if index >= num_sinks]
    candidates.sort(key=lambda index: (mass[index], index))
    return sorted(candidates[:excess])
