"""The engine's last steps and sequences, as a trace that Perfetto and Chrome show.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format, JSON object).
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headrace.core.events import RequestTimes
from headrace.core.stats import StepStats

_MICRO: Final = 1e6
_STEPS: Final = 1
"""Thread of the steps; lanes of sequences follow."""
Event = dict[str, Any]


class SequenceTimes(NamedTuple):
    """One sequence that has ended. Times are of `Clock.monotonic`; no text."""

    name: str
    times: RequestTimes
    last_token: float
    num_prompt_tokens: int
    num_tokens: int
    reason: str


class Timeline:
    """One engine's, bounded: what is older is forgotten."""

    def __init__(self, max_steps: int) -> None:
        """As many sequences as steps are kept; 0 keeps nothing."""
        self._steps: deque[StepStats] = deque(maxlen=max_steps)
        self._sequences: deque[SequenceTimes] = deque(maxlen=max_steps)

    def note_steps(self, steps: list[StepStats]) -> None:
        """Steps that the engine has told of."""
        self._steps.extend(steps)

    def note_sequence(self, sequence: SequenceTimes) -> None:
        """A sequence has ended."""
        self._sequences.append(sequence)

    def events(self, process: int, model: str, num_steps: int) -> Iterator[Event]:
        """The last `num_steps` steps and what ended while they ran, as process number `process`."""
        steps = list(self._steps)[-num_steps:] if num_steps else []
        yield _meta("process_name", process, 0, model)
        yield _meta("thread_name", process, _STEPS, "steps")
        for step in steps:
            yield from _step(step, process)
        since = steps[0].started if steps else 0.0
        shown = [s for s in self._sequences if s.last_token >= since]
        yield from _lanes(shown, process)


def _step(step: StepStats, process: int) -> Iterator[Event]:
    tokens = {"prefill": step.num_prefill_tokens, "decode": step.num_decode_tokens}
    kind = "mixed" if all(tokens.values()) else "prefill" if tokens["prefill"] else "decode"
    detail = {**tokens, "sequences": step.num_sequences, "step": step.step_id}
    yield _slice(kind, process, _STEPS, step.started, step.seconds, detail)
    at = step.started
    for part, seconds in (
        ("inputs", step.inputs_seconds),
        ("model", step.model_seconds),
        ("sample", step.sample_seconds),
    ):
        # Parts are measured apart; what is between them (the channel, the scheduler) is at the end.
        seconds = max(0.0, min(seconds, step.started + step.seconds - at))
        if seconds:
            yield _slice(part, process, _STEPS, at, seconds)
        at += seconds
    counter = {"ph": "C", "pid": process, "ts": step.started * _MICRO}
    yield {**counter, "name": "tokens", "args": tokens}
    yield {**counter, "name": "sequences", "args": {"running": step.num_sequences}}


def _lanes(sequences: list[SequenceTimes], process: int) -> Iterator[Event]:
    """As few tracks as let no two sequences overlap."""
    free_at: list[float] = []
    for sequence in sorted(sequences, key=lambda s: s.times.queued):
        begin = sequence.times.queued
        lane = next((i for i, free in enumerate(free_at) if free <= begin), len(free_at))
        if lane == len(free_at):
            free_at.append(0.0)
            yield _meta("thread_name", process, _STEPS + 1 + lane, f"sequences {lane + 1}")
        free_at[lane] = sequence.last_token
        yield from _sequence(sequence, process, _STEPS + 1 + lane)


def _sequence(sequence: SequenceTimes, process: int, lane: int) -> Iterator[Event]:
    times = sequence.times
    detail = {
        "prompt_tokens": sequence.num_prompt_tokens,
        "output_tokens": sequence.num_tokens,
        "reason": sequence.reason,
    }
    total = sequence.last_token - times.queued
    yield _slice(sequence.name, process, lane, times.queued, total, detail)
    for part, begin, end in (
        ("queue", times.queued, times.first_scheduled),
        ("prefill", times.first_scheduled, times.first_token),
        ("decode", times.first_token, sequence.last_token),
    ):
        if end > begin:
            yield _slice(part, process, lane, begin, end - begin)


def _slice(
    name: str, process: int, lane: int, start: float, seconds: float, detail: Event | None = None
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": lane,
        "ts": start * _MICRO,
        "dur": max(0.0, seconds) * _MICRO,
        **({"args": detail} if detail else {}),
    }


def _meta(what: str, process: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}
