"""The KV policy `evict`: when a sequence weighs its blocks, and what it may not do before it has.

Tokens must not depend on chunks, batches, prefix hits or preemptions, so everything is a function of
positions. Attention is observed from the last OBSERVED tokens of the prompt on (as SnapKV does: Li et al.,
2024). Blocks are weighed when the prompt is computed, and then at every multiple of the block size. A row
never reaches beyond such a point, and none begins there before all before it are committed; a prefix hit
ends where observation begins.
"""

from headrace.core.step import RowResult
from headrace.engine.memory.eviction import num_kept
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.sequence import Sequence

#: Last tokens of a prompt whose attention says which of its blocks matter.
OBSERVED = 32


def first_observed(sequence: Sequence) -> int:
    """The first position whose attention counts."""
    return max(0, sequence.group.num_prompt - OBSERVED)


def row_limit(sequence: Sequence, block_size: int) -> int:
    """Tokens that its next row may have at most; 0 while rows in flight decide what it will see."""
    start, num_prompt = sequence.num_planned, sequence.group.num_prompt
    if start < num_prompt:
        return num_prompt - start
    is_point = start == num_prompt or start % block_size == 0
    if is_point and sequence.num_in_flight:
        return 0
    return block_size - start % block_size


def observes(sequence: Sequence, start: int, end: int) -> int:
    """How many of a row's last tokens count."""
    return max(0, end - max(start, first_observed(sequence)))


def weighs(sequence: Sequence, end: int, block_size: int) -> bool:
    """Whether a row that ends here reports what attention fell on."""
    group = sequence.group
    policy = group.policy
    if end < group.num_prompt or (end > group.num_prompt and end % block_size):
        return False
    return end // block_size > num_kept(policy.window, policy.num_sinks, block_size)


def evict(sequence: Sequence, row: RowResult, ledger: KVLedger) -> None:
    """Give up what its row says matters least; after the row was committed."""
    if sequence.blocks is not None:
        policy = sequence.group.policy
        ledger.evict(sequence.blocks, row.block_mass, policy.window, policy.num_sinks)
