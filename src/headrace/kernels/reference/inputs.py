"""What a step's inputs must satisfy, whatever the back end."""

import numpy as np

from headrace.core.errors import KernelError
from headrace.kernels.values import KVLayout, StepInputs, StepLimits


def check_inputs(inputs: StepInputs, limits: StepLimits, layout: KVLayout) -> None:
    """Raise KernelError, with a sentence, for inputs that an op could not run on."""
    num_tokens, num_sequences = len(inputs.token_ids), len(inputs.slots)
    require(num_tokens <= limits.max_tokens, f"{num_tokens} tokens exceed {limits.max_tokens}")
    num_outputs = len(inputs.output_rows)
    require(num_outputs <= limits.max_outputs, f"{num_outputs} rows exceed {limits.max_outputs}")
    require(len(inputs.positions) == num_tokens, "positions and token_ids differ in length")
    num_given = 0 if inputs.embeddings is None else len(inputs.embeddings)
    require(bool(np.all(inputs.token_ids >= -num_given)), "a token id is below the embeddings")
    starts = inputs.query_starts
    require(len(starts) == num_sequences + 1, "query_starts has one entry more than slots")
    require(len(inputs.key_starts) == num_sequences, "key_starts and slots differ in length")
    require(
        int(starts[0]) == 0
        and int(starts[-1]) == num_tokens
        and bool(np.all(np.diff(starts) >= 0)),
        "query_starts must rise from 0 to the number of tokens",
    )
    require(bool(np.all(inputs.key_starts >= 0)), "key_starts are not negative")
    rows = inputs.output_rows
    require(bool(np.all((rows >= 0) & (rows < num_tokens))), "output_rows name tokens of the step")
    require(len(inputs.block_tables) == len(layout.num_blocks), "one block table per KV group")
    if inputs.adapters is not None:
        require(len(inputs.adapters) == num_tokens, "adapters and token_ids differ in length")
        require(bool(np.all(inputs.adapters >= 0)), "adapters are not negative")
    for group in range(len(layout.num_blocks)):
        _check_table(inputs, layout, group)


def _check_table(inputs: StepInputs, layout: KVLayout, group: int) -> None:
    """Written blocks exist; all others exist or are absent (below zero)."""
    table = inputs.block_tables[group]
    size = layout.block_size
    for sequence, slot in enumerate(inputs.slots):
        require(0 <= slot < len(table), f"slot {slot} has no block table")
        first = int(inputs.key_starts[sequence])
        count = int(inputs.query_starts[sequence + 1] - inputs.query_starts[sequence])
        if count == 0:
            continue
        last_block = (first + count - 1) // size
        require(last_block < table.shape[1], f"slot {slot} has more keys than its table holds")
        blocks = table[slot, : last_block + 1]
        require(bool(np.all(blocks < layout.num_blocks[group])), "a block id is out of range")
        require(bool(np.all(blocks[first // size :] >= 0)), "a block to be written is absent")


def require(condition: bool, sentence: str) -> None:
    """Raise KernelError unless the condition holds."""
    if not condition:
        raise KernelError(f"run: {sentence}.")
