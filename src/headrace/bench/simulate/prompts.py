"""Token ids of prompts that exist as lengths and block ids only: equal blocks, equal tokens."""

from headrace.bench.trace import TraceRow

#: Ids from here on are given to what no other request has; below are those of blocks.
_OWN = 1 << 30
_ANY = (1 << 30) - 1


def prompt_ids(row: TraceRow, block_tokens: int, number: int) -> list[int]:
    """`row.input_tokens` ids. `number` tells requests apart: what is not in `row.blocks` is shared with none."""
    ids: list[int] = []
    for block in row.blocks:
        ids += [block & _ANY] * block_tokens
    del ids[row.input_tokens - 1 :]
    return ids + [_OWN + (number & _ANY)] * (row.input_tokens - len(ids))
