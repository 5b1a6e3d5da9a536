"""Spans of a generation: made when it has ended, of the times that its events brought along."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headrace.api.usage import PromptTokensDetails, Usage
from headrace.core.request import Request
from headrace.observe.recorder import SequenceRecorder
from headrace.observe.tracing.tracer import Trace
from headrace.observe.tracing.values import Attribute

#: Operations of OpenTelemetry's conventions for generative AI; all other paths complete texts.
_CHATS: Final = ("chat", "messages", "responses")
#: Reasons that one span tells, of an answer with many choices.
_MAX_REASONS: Final = 16


class Generation(Struct, frozen=True, kw_only=True):
    """What is told of an answer: names and numbers, no text."""

    path: str
    model: str
    requests: tuple[Request, ...]
    is_stream: bool
    usage: Usage
    error: str
    ended: float
    """`Clock.monotonic`."""


def operation_of(path: str) -> str:
    """The operation that a path stands for."""
    return "chat" if any(word in path for word in _CHATS) else "text_completion"


def tell_generation(
    trace: Trace, generation: Generation, sequences: Sequence[SequenceRecorder]
) -> None:
    """Add its spans: receive, tokenize, queue, prefill, decode, stream. Of several sequences they span all."""
    operation = operation_of(generation.path)
    trace.describe(f"{operation} {generation.model}", _attributes(operation, generation, sequences))
    trace.failure = generation.error
    read = trace.marks.get("read", trace.arrival)
    prepared = trace.marks.get("prepared", read)
    trace.add("receive", trace.arrival, read)
    trace.add(
        "tokenize", read, prepared,
        {"headrace.prompt_tokens": sum(r.num_prompt_tokens for r in generation.requests)},
    )  # fmt: skip
    times = [s.times for s in sequences if s.times is not None and s.times.first_scheduled]
    if times:
        scheduled = min(t.first_scheduled for t in times)
        trace.add("queue", min(t.queued for t in times), scheduled)
        firsts = [t.first_token for t in times if t.first_token]
        if firsts:
            cached = {"headrace.cached_tokens": _cached(generation.usage)}
            trace.add("prefill", scheduled, min(firsts), cached)
            last = max((s.last_token for s in sequences), default=0.0)
            made = sum(s.num_tokens for s in sequences)
            trace.add("decode", min(firsts), last, {"headrace.output_tokens": made})
    shown = [s.first_token for s in sequences if s.first_token]
    if generation.is_stream and shown:
        trace.add("stream", min(shown), generation.ended)


def _attributes(
    operation: str, generation: Generation, sequences: Sequence[SequenceRecorder]
) -> dict[str, Attribute | None]:
    first, usage = generation.requests[0], generation.usage
    params = first.params
    shown = [s.first_token for s in sequences if s.first_token]
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": generation.model,
        "gen_ai.response.model": generation.model,
        "gen_ai.response.id": first.request_id,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": first.n,
        "gen_ai.request.stream": generation.is_stream,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": _cached(usage),
        "gen_ai.response.finish_reasons": [s.reason for s in sequences[:_MAX_REASONS]],
        "gen_ai.response.time_to_first_chunk": (
            min(shown) - first.arrival_time if shown and generation.is_stream else None
        ),
    }


def _cached(usage: Usage) -> int | None:
    details = usage.prompt_tokens_details
    return details.cached_tokens if isinstance(details, PromptTokensDetails) else None
