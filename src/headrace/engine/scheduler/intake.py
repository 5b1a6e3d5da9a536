"""Why a request cannot run, or need not: pure checks before it enters the queue."""

from headrace.core.errors import BadRequestError, HeadraceError, PromptTooLongError
from headrace.core.events import FinishReason
from headrace.core.request import KVPolicyKind, Request, TokenSegment
from headrace.engine.scheduler.sequence import SequenceGroup, prompt_token_ids

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
    if request.kv_policy.kind is KVPolicyKind.EVICT:
        return BadRequestError(
            "The KV policy 'evict' is not available; 'full' and 'window' are.", param="kv_policy"
        )
    if request.kv_policy.kind is KVPolicyKind.WINDOW and request.kv_policy.window < 1:
        return BadRequestError("A KV window has at least one token.", param="kv_policy")
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


def no_adapters(request: Request) -> int:
    """The number of a request's adapter in an engine that has none."""
    return -1
