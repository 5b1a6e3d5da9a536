"""Looks at every replica again and again, and at once at one that has just failed a request."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from itertools import count

from headrace.core.clock import Clock
from headrace.fleet.probe import NotReadyError
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica, Report
from headrace.fleet.upstream.failure import UpstreamError

log = logging.getLogger("headrace.fleet")

Probe = Callable[[Replica, float, int], Awaitable[Report]]
"""Replica, seconds of patience, and the how many-th look it is."""


class Streak:
    """Outcomes in a row, for hysteresis."""

    __slots__ = ("num_bad", "num_good")

    def __init__(self) -> None:
        self.num_good = 0
        self.num_bad = 0

    def add(self, is_good: bool) -> None:
        """One more."""
        self.num_good = self.num_good + 1 if is_good else 0
        self.num_bad = 0 if is_good else self.num_bad + 1


class Prober:
    """One task for each replica; they come and go with the registry."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        probe: Probe,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` gives numbers uniform in [0, 1): looks are spread out by it."""
        self._draw = draw
        self._registry = registry
        self._clock = clock
        self._probe = probe
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._wake: dict[Replica, asyncio.Event] = {}
        self._streaks: dict[Replica, Streak] = {}
        self._in_doubt: set[Replica] = set()
        """Those that are asked for everything at their next look."""
        self.on_restart: Callable[[Replica], None] = lambda _: None
        """Called when a replica runs for less long than it did at the last look: its cache is empty."""

    def sync(self) -> None:
        """Probe exactly the replicas that are registered."""
        current = set(self._registry)
        for replica in [r for r in self._tasks if r not in current]:
            self._tasks.pop(replica).cancel()
            self._wake.pop(replica)
            self._streaks.pop(replica)
            self._in_doubt.discard(replica)
        for replica in current - self._tasks.keys():
            self._wake[replica] = asyncio.Event()
            self._streaks[replica] = Streak()
            self._tasks[replica] = asyncio.create_task(
                self._watch(replica), name=f"probe {replica.id}"
            )

    def look_now(self, replica: Replica, *, at_all: bool = False) -> None:
        """A request has just failed there: do not wait for the next look. `at_all`: ask for its models too, even if it
        told them a moment ago.
        """
        if (event := self._wake.get(replica)) is not None:
            event.set()
            if at_all:
                self._in_doubt.add(replica)

    def note_unreachable(self, replica: Replica, reason: str) -> None:
        """A request found nobody there: it gets nothing more until a look, which comes at once, finds somebody."""
        if replica in self._streaks:
            self._note_bad(replica, reason, is_certain=True)
            self.look_now(replica)

    async def close(self) -> None:
        """Stop looking."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, replica: Replica) -> None:
        event = self._wake[replica]
        for number in count():
            health = self._registry.health
            event.clear()
            # One that could not be used may have come back as another: it is asked for everything.
            is_known = replica.ready_since is not None and replica not in self._in_doubt
            self._in_doubt.discard(replica)
            try:
                await self._look(replica, health.probe_timeout, number if is_known else 0)
            except Exception:  # whoever hears of changes may fail; looking must not end for it
                log.exception("What a probe of %s found could not be told", replica.id)
            # Spread out, so that many gateways do not ask at one moment.
            pause = health.probe_period * (0.8 + 0.4 * self._draw())
            try:
                async with asyncio.timeout(pause):
                    await event.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(min(0.05, health.probe_period))

    async def _look(self, replica: Replica, patience: float, number: int) -> None:
        try:
            async with asyncio.timeout(patience):
                report = await self._probe(replica, patience, number)
        except NotReadyError as error:
            # Its own word counts at once.
            self._note_bad(replica, str(error), is_certain=True)
        except UpstreamError as error:
            self._note_bad(replica, str(error), is_certain=False)
        except TimeoutError:
            self._note_bad(replica, f"no answer to a probe in {patience:g} s", is_certain=False)
        except Exception:
            log.exception("Probing %s failed", replica.id)
            self._note_bad(replica, "its answer to a probe cannot be read", is_certain=False)
        else:
            self._note_good(replica, report)

    def _note_good(self, replica: Replica, report: Report) -> None:
        streak = self._streaks[replica]
        was_bad = streak.num_bad > 0
        streak.add(is_good=True)
        old, replica.report = replica.report, report
        if _has_restarted(old, report):
            self.on_restart(replica)
        if was_bad:
            replica.breaker.note_alive()
        if replica.ready_since is None and streak.num_good >= self._registry.health.probe_successes:
            replica.ready_since = self._clock.monotonic()
            replica.reason = ""
            log.info("Replica %s is ready", replica.id)
            self._registry.on_change()
        elif old is None or old.models != report.models or old.state is not report.state:
            self._registry.on_change()

    def _note_bad(self, replica: Replica, reason: str, *, is_certain: bool) -> None:
        streak = self._streaks[replica]
        streak.add(is_good=False)
        replica.reason = reason
        if replica.ready_since is None:
            if replica.report is None and streak.num_bad == self._registry.health.probe_failures:
                log.info("Replica %s has not been ready yet: %s", replica.id, reason)
            return
        if is_certain or streak.num_bad >= self._registry.health.probe_failures:
            replica.ready_since = None
            log.warning("Replica %s is not ready: %s", replica.id, reason)
            self._registry.on_change()


def _has_restarted(old: Report | None, new: Report) -> bool:
    before = None if old is None else old.uptime
    return before is not None and new.uptime is not None and new.uptime < before
