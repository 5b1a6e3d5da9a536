"""Limits counted in this process: the truth of a single gateway. Pure; time is told to it.

Everything is checked, and then everything is taken, in one call without an await: nothing comes between on one event
loop. What is held can only be settled once.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.fleet.gateway.accounts.meters import (
    MINUTE,
    NOTHING,
    Actual,
    Hold,
    Meter,
    MeterKind,
    Refusal,
)

_BUCKETS: Final = (MeterKind.REQUESTS, MeterKind.TOKENS)
#: Buckets that are kept; beyond, those that are full are forgotten, which says the same.
MAX_BUCKETS: Final = 10_000
#: Seconds that a period is remembered behind its end: a clock that was ahead must not make its money new.
CLOCK_DOUBT: Final = 2 * 86_400.0
#: Rounding of the clock must not refuse a client that came when it was told to.
_GRACE: Final = 1e-6


class Bucket:
    """A token bucket: `limit` at most, filled with `limit` a minute. May be in debt."""

    __slots__ = ("at", "level", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.level = float(limit)
        self.at = now

    def fill(self, limit: int, now: float) -> None:
        """Bring it up to now; a limit that was changed counts from here."""
        self.level = min(float(limit), self.level + max(0.0, now - self.at) * limit / MINUTE)
        self.limit = limit
        self.at = now

    def wait(self, amount: int) -> float:
        """Seconds until `amount` can be taken; 0: now. More than the bucket holds is taken from a full one, in debt:
        a large request is possible, and the rate stays exact in the long run.
        """
        missing = min(float(amount), float(self.limit)) - self.level
        return 0.0 if missing <= self.limit * _GRACE else missing * MINUTE / self.limit


class Money:
    """Of one budget in one period, in billionths."""

    __slots__ = ("resets_at", "set_aside", "spent")

    def __init__(self, spent: int, resets_at: float | None) -> None:
        self.spent = spent
        self.set_aside = 0
        self.resets_at = resets_at


class Counters:
    """All meters and all holds."""

    def __init__(self, spent: Mapping[str, tuple[int, float | None]] | None = None) -> None:
        """`spent` by meter, from before: billionths, and when its period ends."""
        self._buckets: dict[str, Bucket] = {}
        self._places: dict[str, int] = {}
        self._money = {name: Money(*value) for name, value in (spent or {}).items()}
        self._holds: dict[str, Hold] = {}
        self._sweep_beyond = MAX_BUCKETS

    def take(self, hold: Hold, *, monotonic: float, wall: float) -> Refusal | None:
        """Set all of it aside, or nothing."""
        for meter in hold.meters:
            refusal = self._refusal(meter, monotonic, wall)
            if refusal is not None:
                return refusal
        for meter in hold.meters:
            self._add(meter, meter.amount)
        self._holds[hold.id] = hold
        return None

    def settle(self, hold_id: str, actual: Actual, *, monotonic: float) -> Hold | None:
        """Put back what was set aside and take what was used; None if that was done before."""
        hold = self._holds.pop(hold_id, None)
        if hold is None:
            return None
        for meter in hold.meters:
            self._settle(meter, actual.of(meter.kind), monotonic)
        self._forget()
        return hold

    def release(self, hold_id: str, *, monotonic: float) -> Hold | None:
        """Put everything back."""
        return self.settle(hold_id, NOTHING, monotonic=monotonic)

    def spent(self, meter_id: str) -> int:
        """Billionths."""
        found = self._money.get(meter_id)
        return 0 if found is None else found.spent

    def set_aside(self, meter_id: str) -> int:
        """Billionths."""
        found = self._money.get(meter_id)
        return 0 if found is None else found.set_aside

    def places(self, meter_id: str) -> int:
        """Requests that are at work now."""
        return self._places.get(meter_id, 0)

    @property
    def num_holds(self) -> int:
        """Requests for which something is set aside."""
        return len(self._holds)

    def forget_periods(self, wall: float) -> list[str]:
        """Drop budgets whose period is over and that nothing is set aside of; their names."""
        over = [
            name
            for name, money in self._money.items()
            if money.resets_at is not None
            and money.resets_at < wall - CLOCK_DOUBT
            and not money.set_aside
        ]
        for name in over:
            del self._money[name]
        return over

    def _refusal(self, meter: Meter, monotonic: float, wall: float) -> Refusal | None:
        if meter.kind in _BUCKETS:
            bucket = self._buckets.get(meter.id)
            if bucket is None:
                bucket = self._buckets[meter.id] = Bucket(meter.limit, monotonic)
            bucket.fill(meter.limit, monotonic)
            wait = bucket.wait(meter.amount)
            return Refusal(meter, wait) if wait else None
        if meter.kind is MeterKind.PLACES:
            is_full = self._places.get(meter.id, 0) + meter.amount > meter.limit
            return Refusal(meter, 1.0) if is_full else None
        money = self._money.get(meter.id)
        if money is None:
            money = self._money[meter.id] = Money(0, meter.resets_at)
        money.resets_at = meter.resets_at
        if money.spent + money.set_aside + meter.amount <= meter.limit:
            return None
        if money.spent + meter.amount <= meter.limit:
            return Refusal(meter, 1.0)  # requests that run may give back what is missing
        return Refusal(meter, None if meter.resets_at is None else meter.resets_at - wall)

    def _add(self, meter: Meter, amount: int) -> None:
        if meter.kind in _BUCKETS:
            self._buckets[meter.id].level -= amount
        elif meter.kind is MeterKind.PLACES:
            self._places[meter.id] = self._places.get(meter.id, 0) + amount
        else:
            self._money[meter.id].set_aside += amount

    def _settle(self, meter: Meter, used: int, monotonic: float) -> None:
        if meter.kind in _BUCKETS:
            bucket = self._buckets.get(meter.id)
            if bucket is not None:
                bucket.fill(bucket.limit, monotonic)
                bucket.level = min(float(bucket.limit), bucket.level + meter.amount - used)
        elif meter.kind is MeterKind.PLACES:
            left = self._places[meter.id] - meter.amount
            if left:
                self._places[meter.id] = left
            else:
                del self._places[meter.id]
        else:
            money = self._money[meter.id]
            money.set_aside -= meter.amount
            money.spent += used

    def _forget(self) -> None:
        if len(self._buckets) <= self._sweep_beyond:
            return
        now = max(bucket.at for bucket in self._buckets.values())
        for bucket in self._buckets.values():
            bucket.fill(bucket.limit, now)
        self._buckets = {
            name: bucket for name, bucket in self._buckets.items() if bucket.level < bucket.limit
        }
        # Where many are in use, a sweep must not come with every request.
        self._sweep_beyond = max(MAX_BUCKETS, 2 * len(self._buckets))


def cost_of(meters: Iterable[Meter]) -> int:
    """What a request was reckoned to cost; 0 where no budget asked."""
    return max((meter.amount for meter in meters if meter.kind is MeterKind.MONEY), default=0)
