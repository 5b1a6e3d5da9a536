"""Canaries: whether an arm on trial is worse than the others, and switched off for it.

A pure state machine over counts: outcomes and the time go in, a verdict comes out. Answers are counted in slices of
time, so that a window is a handful of numbers whatever the traffic.
"""

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from math import ceil, log2
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from headrace.config.fleet.models import ModelRule, ModelsConfig, RollbackConfig
from headrace.fleet.gateway.models.values import Trial

_SLICES: Final = 12
#: Upper ends of the bins of seconds, a quarter of an octave apart from 1 ms on: medians to within 19 %.
_NUM_BINS: Final = 80
_FIRST: Final = 1e-3


class Outcome(Struct, frozen=True, kw_only=True):
    """How a request ended, by the replica's doing: a client that left is no error of it."""

    is_error: bool
    seconds: float | None = None
    """To the first token of a stream, or to the whole of an answer that came at once; for a client that left before, as long
    as it waited. None where that tells nothing of the replica."""
    is_whole: bool = False
    """It came at once: those take as long as they are long, and are compared with their like only."""


class Times:
    """Seconds that answers took to begin."""

    __slots__ = ("bins", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bins = [0] * _NUM_BINS

    def note(self, seconds: float) -> None:
        """Count one, if it is a time at all."""
        if 0 <= seconds < 1e6:
            self.count += 1
            self.seconds += seconds
            self.bins[_bin(seconds)] += 1

    def add(self, other: "Times") -> None:
        """Count another's too."""
        self.count += other.count
        self.seconds += other.seconds
        self.bins = [left + right for left, right in zip(self.bins, other.bins, strict=True)]

    @property
    def mean(self) -> float:
        """0 where there are none."""
        return self.seconds / self.count if self.count else 0.0

    @property
    def median(self) -> float:
        """To within a bin."""
        left = self.count / 2
        for place, count in enumerate(self.bins):
            left -= count
            if count and left <= 0:
                return _FIRST * float(2.0 ** ((place - 0.5) / 4))
        return 0.0

    def exceed(self, base: "Times", factor: float) -> bool:
        """Both must be worse: a mean alone is one slow answer, a median alone one edge of a bin."""
        return self.median > factor * base.median and self.mean > factor * base.mean


class Sample:
    """Answers of a stretch of time."""

    __slots__ = ("errors", "first", "total", "whole")

    def __init__(self) -> None:
        self.total = self.errors = 0
        self.first = Times()
        """To first tokens."""
        self.whole = Times()
        """To whole answers."""

    def note(self, outcome: Outcome) -> None:
        """Count one."""
        self.total += 1
        self.errors += outcome.is_error
        if outcome.seconds is not None:
            (self.whole if outcome.is_whole else self.first).note(outcome.seconds)

    def add(self, other: "Sample") -> None:
        """Count another's answers too."""
        self.total += other.total
        self.errors += other.errors
        self.first.add(other.first)
        self.whole.add(other.whole)

    @property
    def error_rate(self) -> float:
        """Share of errors."""
        return self.errors / self.total if self.total else 0.0


def _bin(seconds: float) -> int:
    return min(_NUM_BINS - 1, ceil(4 * log2(seconds / _FIRST))) if seconds > _FIRST else 0


def judge(config: RollbackConfig, canary: Sample, base: Sample) -> str | None:
    """What is wrong with the canary; empty: nothing; None: too few answers to say."""
    if canary.total < config.min_samples or base.total < config.min_samples:
        return None
    if canary.error_rate > base.error_rate + config.error_margin:
        return f"errors {canary.error_rate:.1%} against {base.error_rate:.1%}"
    for what, ours, theirs in (
        ("first token", canary.first, base.first),
        ("answer", canary.whole, base.whole),
    ):
        is_known = min(ours.count, theirs.count) >= config.min_samples
        if is_known and ours.exceed(theirs, config.latency_factor):
            return f"{what} {ours.mean:.3f} s against {theirs.mean:.3f} s"
    return ""


class _Window:
    """The last `_SLICES` slices of both sides."""

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _SLICES
        self._slices: deque[tuple[int, Sample, Sample]] = deque(maxlen=_SLICES)

    def note(self, outcome: Outcome, is_canary: bool, now: float) -> None:
        number = int(now // self._width)
        if not self._slices or self._slices[-1][0] < number:
            self._slices.append((number, Sample(), Sample()))
        _, canary, base = self._slices[-1]
        (canary if is_canary else base).note(outcome)

    def sums(self, now: float) -> tuple[Sample, Sample]:
        canary, base = Sample(), Sample()
        first = int(now // self._width) - _SLICES
        for number, one, other in self._slices:
            if number > first:
                canary.add(one)
                base.add(other)
        return canary, base


class Off(Struct, frozen=True, kw_only=True):
    """A canary that is off."""

    rule: str
    terms: str
    """Digest of the split and of the terms that it was tried on."""
    reason: Annotated[str, Meta(min_length=1, max_length=400)]


class Canary:
    """The trial of one rule."""

    def __init__(self, rule: ModelRule) -> None:
        self.rule = rule
        terms = msgspec.json.encode((rule.split, rule.rollback), order="sorted")
        self.terms = blake2b(terms, digest_size=16).hexdigest()
        self._canaries = {arm.name for arm in rule.split if arm.canary}
        self.off_since = 0.0
        """`Clock.monotonic`, of one that is off."""
        self.start()

    def start(self) -> None:
        """Begin, or begin again, with nothing counted."""
        self._window = _Window(self.rule.rollback.window)
        self._next = 0.0
        self.breaches = 0
        """Failed comparisons in a row."""
        self.reason = ""
        """Why it is off; empty: it is not."""

    def note(self, arm: str, outcome: Outcome, now: float) -> bool:
        """Count an answer. True if the canary was switched off by it."""
        config = self.rule.rollback
        self._window.note(outcome, arm in self._canaries, now)
        if self.reason or now < self._next:
            return False
        self._next = now + config.period
        wrong = judge(config, *self._window.sums(now))
        if wrong is None:
            return False
        self.breaches = self.breaches + 1 if wrong else 0
        if self.breaches < config.breaches:
            return False
        self.reason, self.off_since = wrong, now
        return True

    def look(self, now: float) -> str:
        """Why it is off at this moment; empty: it is not. It comes back with its window empty."""
        after = self.rule.rollback.retry_after
        if self.reason and after is not None and now - self.off_since >= after:
            self.start()
        return self.reason


class Canaries:
    """All trials; lives as long as the gateway, through reloads of the rules."""

    def __init__(self, config: ModelsConfig) -> None:
        self._trials: dict[str, Canary] = {}
        self.configure(config)

    def configure(self, config: ModelsConfig) -> None:
        """New rules. A trial goes on if its split and its terms are the same, and starts over if not."""
        old = self._trials
        self._trials = {}
        for rule in config.rules:
            if any(arm.canary for arm in rule.split):
                before = old.get(rule.name)
                same = before is not None and (before.rule.split, before.rule.rollback) == (
                    rule.split,
                    rule.rollback,
                )
                self._trials[rule.name] = before if before and same else Canary(rule)

    def note(self, trial: Trial, outcome: Outcome, now: float) -> str:
        """Count an answer; a reason if the canary of that rule was switched off by it, for the log."""
        canary = self._trials.get(trial.rule)
        return canary.reason if canary and canary.note(trial.arm, outcome, now) else ""

    def off(self, now: float) -> Mapping[str, str]:
        """Rules whose canary is off, and why: the state that `resolve` takes."""
        return {name: why for name, one in self._trials.items() if (why := one.look(now))}

    def switched_off(self, now: float) -> Mapping[Off, float]:
        """All that are off, and since when: what is kept over a restart."""
        return {
            Off(rule=name, terms=one.terms, reason=one.reason): one.off_since
            for name, one in self._trials.items()
            if one.look(now)
        }

    def restore(self, off: Off, since: float) -> bool:
        """It was off before: it stays so, if it is still tried on the same terms."""
        canary = self._trials.get(off.rule)
        if canary is None or canary.terms != off.terms:
            return False
        canary.reason, canary.off_since = off.reason, since
        return True

    def breaches(self) -> Mapping[str, int]:
        """Comparisons in a row that each canary has failed, by its rule."""
        return {name: one.breaches for name, one in self._trials.items()}

    def reset(self, rule: str) -> bool:
        """Try a canary again, whatever was; False if there is no such rule."""
        canary = self._trials.get(rule)
        if canary is not None:
            canary.start()
        return canary is not None
