"""Why a request cannot run, or need not: pure checks before it enters the queue."""

from headrace.config.engine import SchedulerConfig
from headrace.core.errors import BadRequestError, HeadraceError, PromptTooLongError
from headrace.core.events import FinishReason
from headrace.core.request import KVPolicy, KVPolicyKind, Request, TokenSegment
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.beam_group import begin_search
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup, prompt_token_ids

#: Token ids are stored as unsigned 32-bit in block hashes and as int32 by executors.
_MAX_TOKEN_ID = 2**31 - 1


def refusal(request: Request, room: int, *, is_known: bool) -> HeadraceError | None:
    """The error that ends this request at once; None when it can run. `room` bounds all its tokens."""
    if is_known:
        return BadRequestError(f"A request with the id '{request.request_id}' is running.")
    if request.n < 1:
        return BadRequestError("n must be at least 1.", param="n")
    if not all(isinstance(segment, TokenSegment) for segment in request.prompt):
        return BadRequestError("This model takes text only.", param="prompt")
    policy = request.kv_policy
    if policy.kind is not KVPolicyKind.FULL and (policy.window < 1 or policy.num_sinks < 0):
        return BadRequestError("A KV window has at least one token.", param="kv_policy")
    if policy.kind is KVPolicyKind.EVICT and request.beams is not None:
        return BadRequestError("A search keeps all keys: 'evict' is not for it.", param="kv_policy")
    token_ids = [*prompt_token_ids(request), *request.prior_output_ids]
    num_prompt = len(token_ids) - len(request.prior_output_ids)
    if num_prompt == 0:
        return BadRequestError("The prompt is empty.", param="prompt")
    if min(token_ids) < 0 or max(token_ids) > _MAX_TOKEN_ID:
        return BadRequestError("The prompt holds a token id out of range.", param="prompt")
    if num_prompt >= room:
        return PromptTooLongError(num_prompt, room, param="prompt")
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
        Sequence(group, index, ledger.chain(request.adapter, request.cache_salt))
        for index in range(request.num_sequences)
    )
    if request.beams is not None:
        begin_search(group, request.beams)
    return group


def no_adapters(request: Request) -> int:
    """The number of a request's adapter in an engine that has none."""
    return -1
