"""What arrived: a frozen value that owns everything the engine must know."""

from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from headrace.core.beams import BeamSearch
from headrace.core.grammar import Grammar
from headrace.core.pooling import PoolingParams
from headrace.core.sampling import SamplingParams


class TokenSegment(Struct, frozen=True, tag="tokens"):
    """A run of prompt tokens."""

    token_ids: list[int]


#: Stands in for each position of an embedding segment wherever token ids are listed. No vocabulary has it.
MEDIA_TOKEN_ID = 2**31 - 1


class EmbeddingSegment(Struct, frozen=True, tag="embedding"):
    """A run of prompt positions that are given as vectors: soft prompts, what an encoder of images made.

    `digest` stands for the content in block hashes: equal digests, equal vectors.
    """

    digest: bytes
    """sha256 of `data`, or of the media that it was made of and of how."""
    num_tokens: int
    data: bytes
    """float32 [num_tokens, hidden], little endian: what the first layer takes. A model that scales its
    own embeddings (Gemma) takes them scaled."""


Segment = TokenSegment | EmbeddingSegment


def num_positions(segment: Segment) -> int:
    """Positions that a part of a prompt takes."""
    return len(segment.token_ids) if isinstance(segment, TokenSegment) else segment.num_tokens


def embedding_segment(data: bytes, num_tokens: int) -> EmbeddingSegment:
    """Vectors that are named after their own bytes."""
    return EmbeddingSegment(sha256(data).digest(), num_tokens, data)


class KVPolicyKind(StrEnum):
    """What a sequence keeps of its past."""

    FULL = "full"
    WINDOW = "window"
    """The first `num_sinks` tokens and the last `window` ones."""
    EVICT = "evict"
    """Blocks of least attention mass go first, down to `window` tokens."""


class KVPolicy(Struct, frozen=True):
    """What a sequence keeps of its past. One that has dropped a block publishes nothing more."""

    kind: KVPolicyKind = KVPolicyKind.FULL
    num_sinks: int = 0
    window: int = 0


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, validated, tokenised, all defaults resolved.

    It owns a group of `n` sequences. `prior_output_ids` are tokens that an earlier replica already
    produced: they count as output for penalties, min_tokens, stops and the noise, so that the
    continuation is bitwise what the first replica would have said.
    """

    request_id: str
    prompt: tuple[Segment, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    """The model's own end-of-sequence ids (also when `ignore_eos`: min_tokens masks them)."""
    n: int = 1
    priority: int = 0
    """Lower is sooner, as in vLLM; 0 is the default."""
    prior_output_ids: list[int] = []
    grammar: Grammar | None = None
    """What bounds each answer's text; None leaves it free. It has been compiled once before: it is good."""
    adapter: str | None = None
    """Content digest of the LoRA adapter, part of the block hash."""
    beams: BeamSearch | None = None
    """Search for the n likeliest outputs instead of drawing n; they come when the search is over."""
    cache_salt: bytes = b""
    """Separates prefix caches (tenants); part of the first block's hash."""
    kv_policy: KVPolicy = KVPolicy()
    wants_progress: bool = False
    """Tell how far the prompt is after each step that computes a part of it."""
    pooling: PoolingParams | None = None
    """Make a vector, or scores, of the prompt, and no tokens: `params` and what follows from them are idle."""
    arrival_time: float = 0.0
    """`Clock.monotonic` when the HTTP process took it in."""
    deadline: float | None = None
    """`Clock.monotonic` after which the engine ends it (finish reason `timeout`)."""
    max_queue_time: float | None = None
    """Seconds it may wait for its first step before it is refused."""

    @property
    def num_sequences(self) -> int:
        """Sequences that run for it: its outputs, or the beams among which they are found."""
        return self.n if self.beams is None else self.beams.width

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's tokens; positions that are given as vectors have none."""
        return [i for s in self.prompt if isinstance(s, TokenSegment) for i in s.token_ids]

    @property
    def num_prompt_tokens(self) -> int:
        """Positions that the prompt takes."""
        return sum(map(num_positions, self.prompt))
