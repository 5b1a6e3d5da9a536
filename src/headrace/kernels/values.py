"""The values that cross between models, executors and back ends: buffers, layouts, one step's numbers.

Shape legend as in `ops.py`: T tokens of the step, R rows whose logits are wanted, S sequences in the
step, G KV heads, D head size, P block size, V vocabulary.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class DType(StrEnum):
    """Element types of buffers, and of keys and values.

    Q8 is a row of int8 codes with a float32 scale per group of 32, of buffers only. INT16 and INT8 are codes
    with a float32 scale per token and KV head, of keys and values only.
    """

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    Q8 = "q8"
    INT8 = "int8"
    INT16 = "int16"


KV_ONLY_DTYPES = frozenset({DType.INT8, DType.INT16})


class Rows(StrEnum):
    """How many rows a buffer has in a step."""

    TOKENS = "T"
    OUTPUTS = "R"


class Activation(StrEnum):
    """Functions of an MLP: `activation(up)`, or gated, `activation(gate) * up`."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU with tanh, an approximation."""
    GELU = "gelu"
    """GELU with erf."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A matrix of the step's arena: `rows` by `width`. Only handles; the arena is the back end's."""

    index: int
    rows: Rows
    width: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the arena must hold."""

    max_tokens: int  # largest T
    max_outputs: int  # largest R


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Which layers keep keys and values, and how many blocks each group has."""

    num_layers: int
    num_kv_heads: int  # G
    head_size: int  # D
    block_size: int  # P
    dtype: DType
    layer_groups: tuple[int, ...]  # layer -> KV group
    num_blocks: tuple[int, ...]  # per group

    @property
    def bytes_per_token_layer(self) -> int:
        """Bytes that one token takes in one layer, keys and values."""
        if self.dtype in KV_ONLY_DTYPES:
            element = 1 if self.dtype is DType.INT8 else 2
            return 2 * self.num_kv_heads * (self.head_size * element + 4)  # codes and a scale
        element = 4 if self.dtype is DType.F32 else 2
        return 2 * self.num_kv_heads * self.head_size * element


@dataclass(slots=True)
class StepInputs:
    """The numbers of one step. Arrays are views of buffers that live as long as the executor.

    Sequence s runs tokens [query_starts[s], query_starts[s + 1]) and attends the keys with index
    [0, key_starts[s] + its token count) of its block table; its i-th token is written at key index
    key_starts[s] + i and sees keys up to and including itself (when causal). A table entry below zero
    is a block that was given back; its keys are skipped.
    """

    token_ids: NDArray[np.int32]  # [T]
    positions: NDArray[np.int32]  # [T]; for rotary and learned embeddings only
    query_starts: NDArray[np.int32]  # [S + 1]
    key_starts: NDArray[np.int32]  # [S]
    slots: NDArray[np.int32]  # [S]; row of each block table
    block_tables: tuple[NDArray[np.int32], ...]  # per group [max_num_seqs, max_blocks]
    output_rows: NDArray[np.int32]  # [R]; token rows whose logits are wanted
    adapters: NDArray[np.int32] | None = None  # [T]; 0 is the base model
    embeddings: NDArray[np.float32] | None = None  # [E, C]; the token id -1 - e stands for row e


@dataclass(slots=True)
class DryBatch:
    """Penalties for repetition, of the rows of a `SampleBatch`; see `reference/dry.py`.

    A set of breakers is a row of `breakers` and of `words`; several rows of the batch may share one.
    """

    multiplier: NDArray[np.float32]  # [R]; 0: the row has none, and its other entries mean nothing
    base: NDArray[np.float32]  # [R]
    allowed_length: NDArray[np.int32]  # [R]; at least 1
    window: NDArray[np.int32]  # [R]; how many of the last tokens are looked at
    sets: NDArray[np.int32]  # [R]; which set of breakers
    breakers: NDArray[np.uint32]  # [sets, ceil(V / 32)]; bit set: the token is a breaker
    words: NDArray[np.int32]  # [sets, W]; breakers of several tokens: a length, its ids, …, 0


@dataclass(slots=True)
class SampleBatch:
    """One draw per row of logits. `history` rows hold a slot's tokens, prompt first.

    Row r sees history[slots[r], :history_lengths[r]]; output tokens start at num_prompt[r].
    Biases of row r are entries [bias_starts[r], bias_starts[r + 1]); a mask is a bias of -inf.
    """

    temperature: NDArray[np.float32]  # [R]
    top_k: NDArray[np.int32]  # [R]; 0 keeps all
    top_p: NDArray[np.float32]  # [R]
    min_p: NDArray[np.float32]  # [R]
    presence_penalty: NDArray[np.float32]  # [R]
    frequency_penalty: NDArray[np.float32]  # [R]
    repetition_penalty: NDArray[np.float32]  # [R]
    typical_p: NDArray[np.float32]  # [R]; 1 keeps all
    top_n_sigma: NDArray[np.float32]  # [R]; 0 keeps all
    xtc_probability: NDArray[np.float32]  # [R]; 0 excludes none
    xtc_threshold: NDArray[np.float32]  # [R]
    seeds: NDArray[np.uint64]  # [R]
    output_positions: NDArray[np.int64]  # [R]; absolute position among the output tokens
    num_logprobs: NDArray[np.int32]  # [R]; -1 none, else that many alternatives beside the token
    post_sampling: NDArray[
        np.bool_
    ]  # [R]; these are of what was left to draw from, not of the raw logits
    slots: NDArray[np.int32]  # [R]
    history: NDArray[np.int32]  # [max_num_seqs, max_context]
    history_lengths: NDArray[np.int32]  # [R]
    num_prompt: NDArray[np.int32]  # [R]
    bias_starts: NDArray[np.int32]  # [R + 1]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    allowed: NDArray[np.uint32] | None = None  # [R, ceil(V / 32)]; bit set: token allowed (grammar)
    dry: DryBatch | None = None


@dataclass(slots=True)
class SampleOutput:
    """What was drawn. Log-probabilities are of the raw distribution, before any processing, or of what was
    left to draw from (`post_sampling`), renormalised; without noise that is one token.
    """

    token_ids: NDArray[np.int32]  # [R]
    is_finite: NDArray[np.bool_]  # [R]; False: the logits held NaN, +inf or only -inf; token is -1
    logprobs: NDArray[np.float32]  # [R]; NaN where none were asked for
    ranks: NDArray[np.int32]  # [R]; 1 is the most likely token, 0 where not asked for
    top_ids: NDArray[np.int32]  # [R, max(num_logprobs)]; best first, ties by lower id; -1 beyond
    top_logprobs: NDArray[np.float32]  # same shape
