"""When requests come and how long they are: a recorded trace or a synthetic load, bent to a daily curve.

Requests come at a pace of one a second of *load time*; the curve says how much load time passes in each second of the
simulation. Bursts of a trace stay bursts, and a trace that is shorter than the run begins again.
"""

from collections.abc import Iterator, Sequence
from math import cos, exp, log, pi, sqrt
from pathlib import Path
from random import Random

from msgspec.structs import replace

from headrace.bench.simulate.options import Curve, LoadOptions
from headrace.bench.trace import BLOCK_TOKENS, TraceRow, read_trace
from headrace.core.errors import ConfigError

#: Seconds over which the curve is taken to be level.
_STEP = 10.0
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
    rows, pace = _load(options, seed)
    warp = _Warp(options, pace)
    for row in rows:
        at = warp.at(row.at)
        if at >= options.duration:
            return
        yield replace(_fitted(row, options, max_tokens), at=at)


def _load(options: LoadOptions, seed: int) -> tuple[Iterator[TraceRow], float]:
    """Rows by load time, and how many seconds of it pass in one of the simulation on average."""
    if options.trace is None:
        return _synthetic(options, Random(seed)), options.rate or 1.0
    rows = read_trace(Path(options.trace).expanduser())
    span = rows[-1].at * (1 + 1 / len(rows))
    if span <= 0:
        raise ConfigError(f"All requests of the trace {options.trace} come at once.")
    own_rate = len(rows) / span
    pace = options.trace_speed if options.rate is None else options.rate / own_rate
    return _repeated(rows, span), pace


def _repeated(rows: Sequence[TraceRow], span: float) -> Iterator[TraceRow]:
    """Again and again; prompts of another round share nothing with those of this one."""
    per_round = 1 + max((block for row in rows for block in row.blocks), default=0)
    number = 0
    while True:
        for row in rows:
            blocks = (
                tuple(block + number * per_round for block in row.blocks) if number else row.blocks
            )
            yield replace(row, at=row.at + number * span, blocks=blocks)
        number += 1


def _synthetic(options: LoadOptions, rng: Random) -> Iterator[TraceRow]:
    """Poisson arrivals; lengths are log-normal around their means."""
    shared = options.shared_tokens // block_tokens(options)
    at = 0.0
    while True:
        at += rng.expovariate(1.0)
        prompt = _length(rng, options.input_tokens, options.variation)
        output = _length(rng, options.output_tokens, options.variation)
        yield TraceRow(at, prompt + options.shared_tokens, output, tuple(range(shared)))


def _length(rng: Random, mean: int, variation: float) -> int:
    if variation == 0:
        return mean
    sigma = sqrt(log(1 + variation * variation))
    return max(1, round(mean * exp(rng.gauss(-sigma * sigma / 2, sigma))))


def _fitted(row: TraceRow, options: LoadOptions, max_tokens: int) -> TraceRow:
    scale = options.trace_scale if options.trace is not None else 1.0
    output = _scaled(row.output_tokens, scale, options.max_output_tokens)
    output = min(output, max(1, max_tokens // 2))
    prompt = _scaled(row.input_tokens, scale, options.max_input_tokens)
    prompt = min(prompt, max_tokens - output - 1)
    # Blocks beyond a cut prompt are not there.
    blocks = row.blocks[: prompt // block_tokens(options)]
    return TraceRow(row.at, prompt, output, blocks)


def _scaled(length: int, scale: float, limit: int) -> int:
    scaled = max(1, round(length * scale))
    return min(scaled, limit) if limit else scaled


class _Warp:
    """Load time to simulated time; asked for ascending times."""

    def __init__(self, options: LoadOptions, pace: float) -> None:
        self._options = options
        self._pace = pace
        self._start = 0.0
        self._load = 0.0
        self._rate = pace * level(options, _STEP / 2)

    def at(self, load_time: float) -> float:
        """The simulated second in which so much load time has passed."""
        while load_time > self._load + self._rate * _STEP:
            self._load += self._rate * _STEP
            self._start += _STEP
            self._rate = self._pace * level(self._options, self._start + _STEP / 2)
        return self._start + (load_time - self._load) / self._rate


def level(options: LoadOptions, at: float) -> float:
    """The curve: load at a second of the simulation beside the mean."""
    if options.curve is Curve.FLAT:
        return 1.0
    swing = (options.peak_ratio - 1) / (options.peak_ratio + 1)
    return 1.0 + swing * cos(2 * pi * (at / options.day_length - _PEAK))
