"""A sequence: one of a request's outputs, and its life in the engine.

    HELD    -> WAITING   the prompt that a sibling computed for it is there
    WAITING -> RUNNING   admitted
    RUNNING -> WAITING   preempted
    RUNNING -> HELD      a beam that has no future
    any     -> ENDED

Other moves raise. A request and the sequences that share its prompt are a `SequenceGroup`.
"""

from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

from headrace.core.errors import InternalError
from headrace.core.events import FinishReason, RequestTimes
from headrace.core.request import (
    MEDIA_TOKEN_ID,
    EmbeddingSegment,
    KVPolicyKind,
    Request,
    TokenSegment,
)
from headrace.core.step import GivenEmbeddings
from headrace.engine.memory.block_table import SequenceBlocks
from headrace.engine.memory.hashing import HashChain, MediaSpan

if TYPE_CHECKING:
    from headrace.engine.scheduler.beam_group import BeamGroup


class SequenceState(Enum):
    """Where a sequence is in its life."""

    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


_LEGAL = {
    SequenceState.HELD: (SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.WAITING: (SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.RUNNING: (SequenceState.WAITING, SequenceState.HELD, SequenceState.ENDED),
    SequenceState.ENDED: (),
}


class Sequence:
    """Mutable state of one output.

    tokens:  [0, num_prompt) prompt   [num_prompt, len(tokens)) output, prior output included
    KV:      [0, num_computed) committed   [num_computed, num_planned) in flight
    num_known = len(tokens) + num_pending: with outputs that are being sampled right now
    """

    __slots__ = (
        "blocks",
        "chain",
        "finish",
        "first_token_at",
        "group",
        "has_reported",
        "index",
        "is_suspect",
        "life",
        "loads_life",
        "loads_seen",
        "num_cached",
        "num_computed",
        "num_in_flight",
        "num_pending",
        "num_planned",
        "origin",
        "rank",
        "refused_at",
        "seed",
        "slot",
        "state",
        "tokens",
        "waiting_since",
    )

    def __init__(self, group: "SequenceGroup", index: int, chain: HashChain | None) -> None:
        request = group.request
        self.group = group
        self.index = index
        self.chain = chain
        self.rank = (*group.rank, index)
        """Smaller is served sooner and preempted later; never changes."""
        self.seed = derive_seed(request.params.seed, index)
        self.tokens = [*group.prompt_ids, *request.prior_output_ids]
        self.state = SequenceState.HELD if index else SequenceState.WAITING
        self.waiting_since = group.queued_at
        self.slot = -1
        self.blocks: SequenceBlocks | None = None
        self.life = 0
        """Grows at preemption and end: rows planned for an earlier life are void."""
        self.num_computed = 0
        self.num_planned = 0
        self.num_in_flight = 0
        """Rows planned and not committed."""
        self.num_pending = 0
        """Output tokens that rows in flight will give; with drafts counted as one."""
        self.num_cached = 0
        self.first_token_at: float | None = None
        self.has_reported = False
        self.refused_at = -1
        """`KVLedger.num_releases` when memory was last short for it."""
        self.loads_seen = -1
        """`KVLedger.num_landed` when it last found that its blocks are on their way."""
        self.loads_life = -1
        """The life for which blocks were loaded: once each, or two prefixes could drive each other out."""
        self.is_suspect = False
        """A step with it failed, and it has not had a good one since (`trials.py`)."""
        self.finish: FinishReason | None = None
        self.origin: tuple[Sequence, int] | None = None
        """For a beam: the sequence, and its life, that computed all its tokens but the last."""

    @property
    def num_known(self) -> int:
        """Tokens that exist or are being sampled."""
        return len(self.tokens) + self.num_pending

    @property
    def num_remaining(self) -> int:
        """Tokens to catch up: 1 is a decode step, more is prefill, 0 waits for a commit."""
        return len(self.tokens) + self.num_pending - self.num_planned

    @property
    def num_outputs(self) -> int:
        """Output tokens, prior ones included."""
        return len(self.tokens) - self.group.num_prompt

    @property
    def times(self) -> RequestTimes:
        """Gates passed so far; 0.0 for those not reached."""
        group = self.group
        return RequestTimes(
            arrival=group.request.arrival_time,
            queued=group.queued_at,
            first_scheduled=group.first_scheduled or 0.0,
            first_token=self.first_token_at or 0.0,
        )

    def enqueue(self) -> None:
        """HELD to WAITING: the prompt is computed, or whoever computed it is gone."""
        self._move(SequenceState.WAITING)

    def run(self, slot: int, blocks: SequenceBlocks) -> None:
        """WAITING to RUNNING, with the positions that the cache or a sibling gave."""
        self._move(SequenceState.RUNNING)
        self.slot = slot
        self.blocks = blocks
        self.num_computed = self.num_planned = blocks.num_cached

    def preempt(self, now: float) -> None:
        """RUNNING to WAITING: all is recomputed later, except what the prefix cache keeps."""
        self._move(SequenceState.WAITING)
        self.waiting_since = now
        self._leave()

    def hold(self) -> None:
        """RUNNING to HELD: nothing of it goes on; it may become another beam."""
        self._move(SequenceState.HELD)
        self._leave()

    def adopt(self, parent: "Sequence", token_id: int) -> None:
        """A held one becomes the child of a beam, whose tokens are all computed."""
        self.tokens = [*parent.tokens, token_id]
        self.origin = (parent, parent.life)

    def end(self, reason: FinishReason) -> None:
        """Any state to ENDED."""
        self._move(SequenceState.ENDED)
        self.finish = reason
        self._leave()

    def _leave(self) -> None:
        self.slot = -1
        self.blocks = None
        self.life += 1
        self.num_computed = self.num_planned = 0
        self.num_in_flight = self.num_pending = 0

    def _move(self, state: SequenceState) -> None:
        if state not in _LEGAL[self.state]:
            raise InternalError(f"A sequence cannot go from {self.state.value} to {state.value}.")
        self.state = state


class SequenceGroup:
    """A request in the engine: `n` sequences that share a prompt.

    The leader computes it; the others are HELD until that is committed, then fork. Beams are HELD as long as
    there are fewer likely outputs (`beam_group.py`).
    """

    __slots__ = (
        "adapter_index",
        "beams",
        "first_scheduled",
        "is_prompt_computed",
        "mask_ids",
        "max_scored",
        "max_total",
        "num_live",
        "num_prompt",
        "num_scored",
        "num_shared",
        "policy",
        "prompt_ids",
        "queued_at",
        "rank",
        "request",
        "row_params",
        "sequences",
        "stop_ids",
    )

    def __init__(
        self, request: Request, *, order: int, now: float, aging: float, room: int
    ) -> None:
        """`order` counts arrivals, `aging` is seconds per priority level, `room` bounds all tokens."""
        params = request.params
        self.request = request
        self.prompt_ids = prompt_token_ids(request)
        self.num_prompt = len(self.prompt_ids)
        self.num_shared = self.num_prompt + len(request.prior_output_ids)
        """Tokens that all its sequences begin with."""
        # Without output the logits of the last prompt token are made all the same, and not used.
        self.max_total = min(self.num_prompt + max(1, params.max_tokens), room)
        """A sequence with this many tokens has ended."""
        self.max_scored = self.num_prompt - 1 if params.prompt_logprobs is not None else 0
        """Positions that report on the prompt token behind them."""
        self.num_scored = 0
        """Of those, the first ones, that have done so."""
        eos = () if params.ignore_eos else request.eos_token_ids
        self.stop_ids = frozenset((*eos, *params.stop_token_ids))
        self.mask_ids = (
            tuple(sorted({*request.eos_token_ids, *params.stop_token_ids}))
            if params.min_tokens
            else ()
        )
        self.adapter_index = 0
        """Which adapter its rows run with; 0 is the base model."""
        self.row_params = params
        """What the executor does for its rows."""
        self.policy = request.kv_policy
        """What it keeps of its past."""
        self.queued_at = now
        # Waiting lowers the number: priority - waited / aging = priority + queued / aging - now / aging.
        # The last term is the same for all, so the order of any two never changes and needs no clock.
        level = request.priority + now / aging if aging > 0 else float(request.priority)
        self.rank = (level, order)
        self.first_scheduled: float | None = None
        self.is_prompt_computed = False
        self.sequences: tuple[Sequence, ...] = ()
        self.num_live = request.num_sequences
        self.beams: BeamGroup | None = None
        """The search that decides what its sequences say; None: each is an output."""

    @property
    def has_window(self) -> bool:
        """Its KV policy drops blocks behind a window."""
        return self.policy.kind is KVPolicyKind.WINDOW

    @property
    def is_evicting(self) -> bool:
        """Its KV policy drops blocks that matter little."""
        return self.policy.kind is KVPolicyKind.EVICT

    @property
    def is_scoring(self) -> bool:
        """Some of the prompt's log-probabilities are still to come."""
        return self.num_scored < self.max_scored

    def live(self) -> list[Sequence]:
        """Sequences that have not ended, by index."""
        return [s for s in self.sequences if s.state is not SequenceState.ENDED]

    def held(self) -> list[Sequence]:
        """Sequences that wait for the prompt, by index."""
        return [s for s in self.sequences if s.state is SequenceState.HELD]

    def fork_source(self) -> Sequence | None:
        """A running sequence that has the whole shared beginning computed."""
        for sequence in self.sequences:
            if sequence.blocks is not None and sequence.num_computed >= self.num_shared:
                return sequence
        return None


def prompt_token_ids(request: Request) -> list[int]:
    """All ids of a prompt, with MEDIA_TOKEN_ID at positions that are given as vectors."""
    token_ids: list[int] = []
    for segment in request.prompt:
        if isinstance(segment, TokenSegment):
            token_ids.extend(segment.token_ids)
        else:
            token_ids.extend([MEDIA_TOKEN_ID] * segment.num_tokens)
    return token_ids


def given_embeddings(request: Request) -> tuple[GivenEmbeddings, ...]:
    """Where the prompt's vectors are."""
    found: list[GivenEmbeddings] = []
    start = 0
    for segment in request.prompt:
        if isinstance(segment, TokenSegment):
            start += len(segment.token_ids)
        else:
            found.append(GivenEmbeddings(start, segment.num_tokens, segment.data))
            start += segment.num_tokens
    return tuple(found)


def media_spans(request: Request) -> tuple[MediaSpan, ...]:
    """What block hashes say of the prompt's vectors."""
    digests = [s.digest for s in request.prompt if isinstance(s, EmbeddingSegment)]
    return tuple(
        MediaSpan(given.start, given.num_tokens, digest)
        for given, digest in zip(given_embeddings(request), digests, strict=True)
    )


def derive_seed(seed: int, index: int) -> int:
    """Seed of a request's sequence: its own for index 0, else 63 bits of sha256(tag, seed, index).

    Part of the contract: the same request gives the same n outputs on every replica and release.
    """
    if index == 0:
        return seed
    data = b"headrace/seed/1" + seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(sha256(data).digest()[:8], "little") >> 1
