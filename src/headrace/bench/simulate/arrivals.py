"""When requests come and how long they are: a recorded trace or a synthetic load, thinned to a daily curve.

Copies of a trace that begin at other places stand for independent sources: more of them are a higher rate with bursts as
long as they were recorded. The curve takes requests away (thinning, Lewis and Shedler 1979): at its top all of them come.
A trace that is shorter than the run begins again.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from math import cos, exp, log, pi, sqrt
from pathlib import Path
from random import Random

from headrace.bench.simulate.options import Curve, LoadOptions
from headrace.bench.trace import BLOCK_TOKENS, TraceRow, read_trace
from headrace.core.errors import ConfigError

#: Share of a day at which the load is highest: three in the afternoon.
_PEAK = 15.0 / 24.0
#: Ids of synthetic prompts' own blocks begin here; no trace has so many.
_OWN_BLOCKS = 1 << 40


def block_tokens(options: LoadOptions) -> int:
    """Prompt tokens that one id of `TraceRow.blocks` stands for, after scaling."""
    return max(1, round(BLOCK_TOKENS * options.trace_scale))


def arrivals(options: LoadOptions, seed: int, max_tokens: int) -> Iterator[TraceRow]:
    """Requests in order of `at`, seconds from the start, until `options.duration`.

    No prompt has more than `max_tokens`, less its answer. Raises ConfigError for a trace that cannot be read.
    """
    top = _top(options)
    rows = _load(options, seed, top, max_tokens)
    draw = Random(f"{seed}:curve").random
    for row in rows:
        if row.at >= options.duration:
            return
        if options.curve is Curve.FLAT or draw() * top < level(options, row.at):
            yield row


def _load(options: LoadOptions, seed: int, top: float, max_tokens: int) -> Iterator[TraceRow]:
    """What would come if the load were always at the top of its curve, `top` means."""
    if options.trace is None:
        if options.sources > 1:
            raise ConfigError("--sources needs a --trace: they are copies of one.")
        return _synthetic(options, Random(seed), top, max_tokens)
    rows = read_trace(Path(options.trace).expanduser())
    span = rows[-1].at * (1 + 1 / len(rows))
    if span <= 0:
        raise ConfigError(f"All requests of the trace {options.trace} come at once.")
    pace = options.trace_speed
    if options.rate is not None:
        pace = options.rate / (options.sources * len(rows) / span)
    pace *= top
    rows = [_fitted(row, row.at / pace, options, max_tokens) for row in rows]
    copies = range(options.sources)
    if len(copies) == 1:
        return _repeated(rows, span / pace, 0, 1)
    return merge(
        *(_repeated(rows, span / pace, copy, len(copies)) for copy in copies),
        key=lambda row: row.at,
    )


def _repeated(
    rows: Sequence[TraceRow], span: float, copy: int, num_copies: int
) -> Iterator[TraceRow]:
    """Again and again, each copy from its own place on; prompts of another round or copy share nothing with those of this."""
    per_round = 1 + max((block for row in rows for block in row.blocks), default=0)
    began = -span * copy / num_copies
    first = next((i for i, row in enumerate(rows) if row.at + began >= 0), len(rows))
    places: Iterable[int] = range(first, len(rows))
    number = copy
    while True:
        for place in places:
            row = rows[place]
            blocks = row.blocks
            if blocks and number:
                blocks = tuple(block + number * per_round for block in blocks)
            yield TraceRow(row.at + began, row.input_tokens, row.output_tokens, blocks)
        places = range(len(rows))
        began += span
        number += num_copies


def _synthetic(
    options: LoadOptions, rng: Random, top: float, max_tokens: int
) -> Iterator[TraceRow]:
    """Poisson arrivals; lengths are log-normal around their means."""
    shared = options.shared_tokens // block_tokens(options)
    at, rate = 0.0, (options.rate or 1.0) * top
    while True:
        at += rng.expovariate(rate)
        prompt = _length(rng, options.input_tokens, options.variation)
        output = _length(rng, options.output_tokens, options.variation)
        row = TraceRow(at, prompt + options.shared_tokens, output, tuple(range(shared)))
        yield _fitted(row, at, options, max_tokens)


def _length(rng: Random, mean: int, variation: float) -> int:
    if variation == 0:
        return mean
    sigma = sqrt(log(1 + variation * variation))
    return max(1, round(mean * exp(rng.gauss(-sigma * sigma / 2, sigma))))


def _fitted(row: TraceRow, at: float, options: LoadOptions, max_tokens: int) -> TraceRow:
    """As long as replicas and options allow."""
    scale = options.trace_scale if options.trace is not None else 1.0
    output = _scaled(row.output_tokens, scale, options.max_output_tokens)
    output = min(output, max(1, max_tokens // 2))
    prompt = _scaled(row.input_tokens, scale, options.max_input_tokens)
    prompt = min(prompt, max_tokens - output - 1)
    # Blocks beyond a cut prompt are not there.
    blocks = row.blocks[: prompt // block_tokens(options)]
    return TraceRow(at, prompt, output, blocks)


def _scaled(length: int, scale: float, limit: int) -> int:
    scaled = max(1, round(length * scale))
    return min(scaled, limit) if limit else scaled


def level(options: LoadOptions, at: float) -> float:
    """The curve: load at a second of the simulation beside the mean."""
    if options.curve is Curve.FLAT:
        return 1.0
    return 1.0 + _swing(options) * cos(2 * pi * (at / options.day_length - _PEAK))


def _swing(options: LoadOptions) -> float:
    return (options.peak_ratio - 1) / (options.peak_ratio + 1)


def _top(options: LoadOptions) -> float:
    """The curve's highest level."""
    return 1.0 if options.curve is Curve.FLAT else 1.0 + _swing(options)
