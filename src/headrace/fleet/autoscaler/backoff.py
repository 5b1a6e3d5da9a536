"""Replicas that fail again and again: started more and more slowly, one at a time, and visible as a crash loop. Pure."""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

#: Failures in a row from which it is a crash loop.
LOOP: Final = 3
#: Seconds for which a replica must serve until failures before it are forgotten.
STABLE_SECONDS: Final = 30.0


class Backoff(Struct, frozen=True, kw_only=True):
    """Of one pool."""

    num_failures: int = 0
    """In a row."""
    until: float = 0.0
    """`Clock.monotonic` before which nothing is started."""
    reason: str = ""
    """Of the last failure."""

    @property
    def is_crash_loop(self) -> bool:
        """It fails whatever is done."""
        return self.num_failures >= LOOP

    def failed(self, now: float, reason: str, least: float, most: float) -> "Backoff":
        """One more failure: twice as long as after the one before, from `least` to `most` seconds."""
        wait = min(most, least * 2.0 ** min(self.num_failures, 30))
        return Backoff(num_failures=self.num_failures + 1, until=now + wait, reason=reason[:500])

    def stable(self) -> "Backoff":
        """A replica has served for long enough."""
        return replace(self, num_failures=0, reason="") if self.num_failures else self

    def allowed(self, wanted: int, num_starting: int, now: float) -> int:
        """How many of the wanted starts may be made now."""
        if now < self.until:
            return 0
        if self.num_failures:
            return min(wanted, max(0, 1 - num_starting))
        return wanted
