"""Which requests are sent, and when: from a seed or from a trace. Same seed, same load."""

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from msgspec import Struct

from headrace.bench.options import Arrivals, BenchOptions
from headrace.bench.trace import BLOCK_TOKENS, TraceRow
from headrace.bench.words import random_text

DEFAULT_CONCURRENCY = (1, 4, 16)
OPEN_LOOP_SECONDS = 30
"""How long an open loop runs when no number of requests is given."""


class Item(Struct, frozen=True):
    """One request to send."""

    prompt: str
    max_tokens: int
    at: float = 0.0
    """Seconds after the start of the run at which an open loop sends it."""


class Run(Struct, frozen=True, kw_only=True):
    """One run of the measurement."""

    label: str
    num_requests: int
    concurrency: int | None = None
    """Clients of a closed loop; None: an open loop that follows the items' times."""
    rate: float | None = None
    """Requests per second of a synthetic open loop."""


def plan_runs(options: BenchOptions, trace: Sequence[TraceRow]) -> list[Run]:
    """The runs that the options ask for, in order."""
    wanted = options.num_requests
    runs = [
        Run(
            label=f"{clients} client{'s' if clients > 1 else ''}",
            concurrency=clients,
            num_requests=wanted or len(trace) or max(4, 2 * clients),
        )
        for clients in options.concurrency or _default_concurrency(options)
    ]
    runs += [
        Run(
            label=f"{rate:g} requests/s ({options.arrivals})",
            rate=rate,
            num_requests=wanted or len(trace) or max(20, round(OPEN_LOOP_SECONDS * rate)),
        )
        for rate in options.rate
    ]
    if trace and not runs:
        speed = "" if options.trace_speed == 1.0 else f" at {options.trace_speed:g}x"
        runs.append(Run(label=f"trace{speed}", num_requests=wanted or len(trace)))
    return runs


def make_items(
    run: Run, options: BenchOptions, trace: Sequence[TraceRow], seed: int
) -> Iterator[Item]:
    """The requests of one run, made one at a time (a long trace's prompts would fill the memory)."""
    rng = Random(f"{seed}:{run.concurrency}:{run.rate}")
    pairs = _from_trace(options, trace, seed, rng) if trace else _synthetic(options, seed, rng)
    times = _times(run, options, trace, rng.getrandbits(64))
    for (prompt, max_tokens), at in islice(zip(pairs, times, strict=False), run.num_requests):
        yield Item(prompt, max_tokens, at)


def _default_concurrency(options: BenchOptions) -> tuple[int, ...]:
    return () if options.rate or options.trace else DEFAULT_CONCURRENCY


def _synthetic(options: BenchOptions, seed: int, rng: Random) -> Iterator[tuple[str, int]]:
    shared = ""
    if options.shared_words:
        shared = random_text(Random(f"{seed}:shared"), options.shared_words) + " "
    while True:
        yield shared + random_text(rng, options.input_words), options.output_tokens


def _from_trace(
    options: BenchOptions, trace: Sequence[TraceRow], seed: int, rng: Random
) -> Iterator[tuple[str, int]]:
    for row in trace:
        num_words = _scaled(row.input_tokens, options.trace_scale, options.max_input_tokens)
        max_tokens = _scaled(row.output_tokens, options.trace_scale, options.max_output_tokens)
        yield _blocks_text(row, num_words, options.trace_scale, seed, rng), max_tokens


def _scaled(length: int, scale: float, limit: int) -> int:
    scaled = max(1, round(length * scale))
    return min(scaled, limit) if limit else scaled


def _blocks_text(row: TraceRow, num_words: int, scale: float, seed: int, rng: Random) -> str:
    """A prompt whose blocks are the same words wherever the trace has the same block."""
    per_block = max(1, round(BLOCK_TOKENS * scale))
    parts, left = [], num_words
    for block in row.blocks:
        if left <= 0:
            break
        parts.append(random_text(Random(f"{seed}:block:{block}"), min(per_block, left)))
        left -= per_block
    if left > 0:
        parts.append(random_text(rng, left))
    return " ".join(parts)


def _times(
    run: Run, options: BenchOptions, trace: Sequence[TraceRow], seed: int
) -> Iterator[float]:
    if run.concurrency is not None:
        while True:
            yield 0.0
    if run.rate is None:
        yield from (row.at / options.trace_speed for row in trace)
        return
    rng, now = Random(seed), 0.0
    while True:
        yield now
        is_poisson = options.arrivals is Arrivals.POISSON
        now += rng.expovariate(run.rate) if is_poisson else 1.0 / run.rate
