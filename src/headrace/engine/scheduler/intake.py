"""Why a request cannot run, or need not: pure checks before it enters the queue."""

from headrace.config.engine import SchedulerConfig
from headrace.core.errors import BadRequestError, HeadraceError, PromptTooLongError
from headrace.core.events import FinishReason
from headrace.core.request import (
    MEDIA_TOKEN_ID,
    EmbeddingSegment,
    KVPolicy,
    KVPolicyKind,
    Request,
    TokenSegment,
)
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.beam_group import begin_search
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup, media_spans


def refusal(
    request: Request, room: int, embedding_size: int = 0, *, is_known: bool
) -> HeadraceError | None:
    """The error that ends this request at once; None when it can run.

    `room` bounds all its tokens, `embedding_size` is that of vectors in prompts (0: it takes none).
    """
    if is_known:
        return BadRequestError(f"A request with the id '{request.request_id}' is running.")
    if request.n < 1:
        return BadRequestError("n must be at least 1.", param="n")
    fault = _embedding_fault(request, embedding_size)
    if fault is not None:
        return BadRequestError(fault, param="prompt")
    fault = _policy_fault(request)
    if fault is not None:
        return BadRequestError(fault, param="kv_policy")
    num_prompt = request.num_prompt_tokens
    if num_prompt == 0:
        return BadRequestError("The prompt is empty.", param="prompt")
    texts = [s.token_ids for s in request.prompt if isinstance(s, TokenSegment)]
    token_ids = [i for ids in (*texts, request.prior_output_ids) for i in ids]
    # Ids are stored as unsigned 32-bit in block hashes and as int32 by executors.
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= MEDIA_TOKEN_ID):
        return BadRequestError("The prompt holds a token id out of range.", param="prompt")
    if num_prompt >= room:
        return PromptTooLongError(num_prompt, room, param="prompt")
    return None


def _policy_fault(request: Request) -> str | None:
    policy = request.kv_policy
    if policy.kind is not KVPolicyKind.FULL and (policy.window < 1 or policy.num_sinks < 0):
        return "A KV window has at least one token."
    if policy.kind is KVPolicyKind.EVICT and request.beams is not None:
        return "A search keeps all keys: 'evict' is not for it."
    return None


def _embedding_fault(request: Request, size: int) -> str | None:
    """What is wrong with vectors in the prompt."""
    segments = [s for s in request.prompt if isinstance(s, EmbeddingSegment)]
    if segments and not size:
        return "This model takes text only."
    if segments and request.params.prompt_logprobs is not None:
        return "A prompt with embeddings has no log-probabilities: its tokens are not known."
    for segment in segments:
        if segment.num_tokens < 1 or len(segment.digest) != 32:
            return "Embeddings are for at least one token and have a digest of 32 bytes."
        if len(segment.data) != 4 * size * segment.num_tokens:
            return f"Embeddings are float32 [{segment.num_tokens}, {size}] here."
    return None


def finished_before(group: SequenceGroup) -> tuple[FinishReason, int | None] | None:
    """How a request ended whose prior output is complete already, with the stop token if one did."""
    prior = group.request.prior_output_ids
    if prior and prior[-1] in group.stop_ids and len(prior) > group.request.params.min_tokens:
        return FinishReason.STOP, prior[-1]
    if group.num_shared >= group.max_total:
        return FinishReason.LENGTH, None
    return None


def open_group(
    request: Request,
    ledger: KVLedger,
    config: SchedulerConfig,
    *,
    order: int,
    now: float,
    room: int,
) -> SequenceGroup:
    """The request's sequences, for `SequenceGroup`'s arguments."""
    group = SequenceGroup(request, order=order, now=now, aging=config.priority_aging, room=room)
    if request.beams is None and request.kv_policy.kind is KVPolicyKind.FULL:
        kind = KVPolicyKind(config.kv_policy)
        group.policy = KVPolicy(kind, config.kv_policy_sinks, config.kv_policy_tokens)
    group.sequences = tuple(
        Sequence(
            group,
            index,
            ledger.chain(request.adapter, request.cache_salt, media_spans(request)),
        )
        for index in range(request.num_sequences)
    )
    if request.beams is not None:
        begin_search(group, request.beams)
    return group


def no_adapters(request: Request) -> int:
    """The number of a request's adapter in an engine that has none."""
    return -1
