"""Beam search over the fake executor's model on plain lists: every continuation of every beam, no blocks."""

from collections.abc import Sequence

from tests.support.fake_executor import continuations

from headrace.core.beams import EarlyStopping
from headrace.core.request import Request, TokenSegment


def history_kvs(tokens: Sequence[int], windows: tuple[int, ...]) -> list[int]:
    """What each position of a sequence leaves behind, computed the plain way."""
    kvs: list[int] = []
    for position, token in enumerate(tokens):
        visible = tuple(
            tuple(kvs[max(0, position - window + 1) if window else 0 : position])
            for window in windows
        )
        kvs.append(hash((token, position, visible)))
    return kvs


def reference_beams(
    request: Request, *, vocab_size: int, windows: tuple[int, ...], room: int
) -> list[list[int]]:
    """The n outputs, best first, computed as transformers' loop does it: scores of -1e9 fill empty places."""
    search, params = request.beams, request.params
    assert search is not None
    prompt = [t for s in request.prompt if isinstance(s, TokenSegment) for t in s.token_ids]
    width, longest = search.width, min(params.max_tokens, room - len(prompt))
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
    masked = {*request.eos_token_ids, *params.stop_token_ids}
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = [(-1e9, [])] * width
    for length in range(1, longest + 1):
        children = [
            (score + logprob, [*output, token])
            for score, output in running
            for token, logprob in continuations(
                history_kvs(prompt + output, windows)[-1], vocab_size
            )
            if length > params.min_tokens or token not in masked
        ]
        children.sort(key=lambda child: -child[0])
        ends = [length == longest or output[-1] in stops for _, output in children]
        for (score, output), is_end in zip(children[:width], ends, strict=False):
            if is_end:
                finished.append((score / length**search.length_penalty, output))
        finished = sorted(finished, key=lambda pair: -pair[0])[:width]
        running = [c for c, is_end in zip(children, ends, strict=True) if not is_end][:width]
        if not running:
            break
        worst = finished[-1][0]
        if search.early_stopping is EarlyStopping.FULL and worst > -1e8:
            break
        horizon = length
        if search.early_stopping is EarlyStopping.NEVER and search.length_penalty > 0:
            horizon = longest
        if not running[0][0] / horizon**search.length_penalty > worst:
            break
    return [output for score, output in finished[: request.n] if score > -1e8]
