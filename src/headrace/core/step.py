"""The two values of the hot loop: the scheduler's plan and the executor's result.

The executor keeps, per slot, what was sent before; a plan carries only what changed. Plans are
serialisable, so that other ranks can run them, and may be pipelined: a row whose `token_ids` is empty
and whose `num_tokens` is 1 runs the token that its slot sampled last, which the scheduler need not
have seen yet.
"""

from enum import IntEnum

from msgspec import Struct

from headrace.core.events import TokenLogprobs
from headrace.core.grammar import Grammar
from headrace.core.pooling import PoolingParams
from headrace.core.sampling import SamplingParams


class OutputKind(IntEnum):
    """What a row gives back."""

    NONE = 0
    """Nothing: the sequence's prompt goes on in a later step."""
    SAMPLE = 1
    """Sampled tokens (with log-probabilities where the parameters ask for them)."""


class GivenEmbeddings(Struct, frozen=True, array_like=True):
    """Positions [start, start + num_tokens) are these vectors, whatever `token_ids` say there."""

    start: int
    num_tokens: int
    data: bytes
    """float32 [num_tokens, hidden], little endian."""


class SequenceStart(Struct, frozen=True, array_like=True):
    """A sequence takes a slot (new, forked, or back from preemption)."""

    slot: int
    params: SamplingParams
    mask_token_ids: tuple[int, ...]
    """Ids masked while the output is shorter than `params.min_tokens` (end of sequence, stop tokens)."""
    token_ids: list[int]
    """All tokens known so far, prompt and output: the history for penalties."""
    num_prompt_tokens: int
    """How many of `token_ids` are prompt; the rest count as output."""
    seed: int
    """Seed of this sequence's noise; sequences of one request have different ones."""
    adapter_index: int = 0
    """0 is the base model."""
    grammar: Grammar | None = None
    """Bounds the output; the outputs among `token_ids` have taken it to where it is now."""
    embeddings: tuple[GivenEmbeddings, ...] = ()
    """Prompt positions that are vectors, ascending."""


class BlockWrite(Struct, frozen=True, array_like=True):
    """Entries [first, first + len(block_ids)) of a slot's block table get these block ids."""

    slot: int
    group: int
    """KV group: layers that share one window share one table."""
    first: int
    block_ids: list[int]


class BlockCopy(Struct, frozen=True, array_like=True):
    """Copy one block before the step runs (copy-on-write)."""

    group: int
    source: int
    target: int


class BlockTransfer(Struct, frozen=True, array_like=True):
    """Load a block from, or store it to, the tier below the cache.

    A load begins with its plan and may end much later: `Executor.take_landed` tells. To begin one again that
    is not over does nothing. A store is done with its plan; one that fails is forgotten.
    """

    group: int
    block: int
    key: bytes
    """The block's hash."""


class BlockLanding(Struct, frozen=True, array_like=True):
    """A load is over."""

    group: int
    block: int
    key: bytes
    is_good: bool
    """The block holds what the key names; else nothing of use."""


class PlanRow(Struct, frozen=True, array_like=True):
    """The tokens of one sequence in this step, at positions [start, start + num_tokens)."""

    slot: int
    start: int
    """Absolute position of the first token."""
    num_tokens: int
    token_ids: list[int]
    """The ids to run; empty with num_tokens == 1: the token that this slot sampled last."""
    output: OutputKind
    num_draft: int = 0
    """The last `num_draft` ids are guesses, to be verified against the draws at their positions."""
    first_output: int = 0
    """Absolute output position of the first token this row samples: the noise's counter."""
    num_scored: int = 0
    """How many of the row's positions, from its first on, report on the prompt token that follows them."""
    num_observed: int = 0
    """The attention of the row's last `num_observed` tokens counts for which blocks the sequence keeps."""
    reports_mass: bool = False
    """The result carries what attention fell on, of all tokens observed since the sequence took its slot."""


class PlanText(Struct, frozen=True, array_like=True):
    """A whole text that runs in this step and leaves nothing behind: neither slot nor blocks."""

    token_ids: list[int]
    pooling: PoolingParams
    adapter_index: int = 0
    """0 is the base model."""


class StepPlan(Struct, frozen=True, kw_only=True):
    """Everything the executor does in one step, in this order: ends, starts, block writes, copies,
    loads, rows, stores. There may be no rows. Or else texts to be pooled, and nothing beside them.
    """

    step_id: int
    rows: tuple[PlanRow, ...]
    starts: tuple[SequenceStart, ...] = ()
    block_writes: tuple[BlockWrite, ...] = ()
    block_copies: tuple[BlockCopy, ...] = ()
    block_loads: tuple[BlockTransfer, ...] = ()
    block_stores: tuple[BlockTransfer, ...] = ()
    ended_slots: tuple[int, ...] = ()
    texts: tuple[PlanText, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that run through the model."""
        if self.texts:
            return sum(len(text.token_ids) for text in self.texts)
        return sum(row.num_tokens for row in self.rows)


class RowResult(Struct, frozen=True, array_like=True):
    """What one planned row gave, in the plan's order; rows with output NONE give no tokens."""

    slot: int
    token_ids: tuple[int, ...] = ()
    """Accepted drafts and the token after them: 0..num_draft + 1 ids."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None
    """This row could not be computed (logits not finite, a refused argument); others are good."""
    is_complete: bool = False
    """The grammar is fulfilled and lets nothing follow the last token."""
    dead_end: str | None = None
    """The grammar lets no token follow, and is not fulfilled: the request's fault, in one sentence."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """`num_scored` of them: of the prompt tokens at positions start + 1, start + 2, …"""
    block_mass: tuple[float, ...] = ()
    """Of a row that reports it: by entry of the block table of the group that sees all tokens, the attention
    that fell on the block, summed over layers, heads and observed tokens. Perhaps more than there are."""


class TextResult(Struct, frozen=True, array_like=True):
    """What one planned text gave, in the plan's order."""

    vector: bytes = b""
    """float32, little endian."""
    error: str | None = None
    """This text could not be computed; others are good."""


class StepTimes(Struct, frozen=True, array_like=True):
    """Seconds spent in the parts of one step."""

    inputs: float = 0.0
    model: float = 0.0
    sample: float = 0.0


class StepResult(Struct, frozen=True, kw_only=True):
    """The outcome of one plan."""

    step_id: int
    rows: tuple[RowResult, ...]
    times: StepTimes = StepTimes()
    texts: tuple[TextResult, ...] = ()
