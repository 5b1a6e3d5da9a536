"""What the fake executor must give for a request: its arithmetic on a plain list, without blocks or plans."""

from tests.support.evicting import EvictingHistory
from tests.support.fake_executor import draw

from headrace.core.request import KVPolicyKind, Request, Segment, TokenSegment
from headrace.engine.scheduler.sequence import derive_seed


def contents(segment: Segment) -> list[int]:
    """What stands at each of its positions: ids, or a number for each vector."""
    if isinstance(segment, TokenSegment):
        return segment.token_ids
    return [hash((segment.data, offset)) for offset in range(segment.num_tokens)]


def reference_tokens(
    request: Request,
    index: int = 0,
    *,
    vocab_size: int,
    windows: tuple[int, ...],
    room: int,
    block_size: int = 4,
) -> list[int]:
    """All output tokens of one sequence (prior output not included), computed the plain way.

    `room` is the largest number of prompt and output tokens (context, or what memory holds); `block_size`
    is for requests that evict.
    """
    params = request.params
    tokens = [t for segment in request.prompt for t in contents(segment)]
    num_prompt = len(tokens)
    tokens += request.prior_output_ids
    num_known = len(tokens)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
    masked = (*request.eos_token_ids, *params.stop_token_ids)
    seed = derive_seed(params.seed, index)
    evicting = None
    if request.kv_policy.kind is KVPolicyKind.EVICT:
        evicting = EvictingHistory(request, windows, block_size)
    kvs: list[int] = [] if evicting is None else evicting.kvs
    while len(tokens) < min(num_prompt + params.max_tokens, room):
        for position in range(len(kvs), len(tokens)):
            if evicting is not None:
                evicting.compute(tokens[position])
                continue
            visible = tuple(
                tuple(kvs[max(0, position - window + 1) if window else 0 : position])
                for window in windows
            )
            kvs.append(hash((tokens[position], position, visible)))
        output = len(tokens) - num_prompt
        mask = masked if output < params.min_tokens else ()
        tokens.append(draw(kvs[-1], seed, output, vocab_size, mask))
        if tokens[-1] in stops:
            break
    return tokens[num_known:]
