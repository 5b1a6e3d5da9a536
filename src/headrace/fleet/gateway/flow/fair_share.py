"""Whose turn it is among tenants that wait: the one that has been served least.

The virtual token counters of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, algorithm 2):
every tenant has a counter of weighted tokens; the next request is one of the waiting tenant with the lowest
counter. A tenant that begins to wait is lifted to the lowest counter that waits, or, where nobody waits, to the
counter of the one that waited last, so that idle time saves nothing up.

One thing is added: a tenant is lifted to `burst` below that level. Without it, each tenant is a queue of its own at its
share of the fleet: while one floods, the others' small bursts wait although they use less than their share on average.
The price is known: a tenant can be ahead of an equal one by `burst` more than in the paper, once per pause. As in the paper's section on length prediction,
a request is charged what is expected of it when it starts, and corrected when its real usage is known.
"""

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Final

#: Counters of tenants that do not wait which are kept beyond one for each that does.
MAX_IDLE: Final = 1024


class FairShare:
    """Counters of tenants, and an order of those that wait. O(log n) each."""

    def __init__(self, burst: float = 0.0) -> None:
        """`burst`: weighted tokens by which a tenant that paused may be ahead of those that did not."""
        self._burst = burst
        self._counters: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._heap: list[tuple[float, int, str]] = []
        self._pushes = 0
        self._last = 0.0

    def join(self, tenant: str) -> None:
        """It has something to wait for; lifts its counter."""
        if tenant in self._waiting:
            return
        self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._level() - self._burst)
        self._waiting.add(tenant)
        self._push(tenant)

    def leave(self, tenant: str) -> None:
        """It waits for nothing more."""
        if tenant in self._waiting:
            self._waiting.discard(tenant)
            self._last = self._counters[tenant]
            self._forget_idle()

    def charge(self, tenant: str, tokens: float) -> None:
        """It was served `tokens` more, or fewer than was charged before where that is negative."""
        if not tokens:
            return
        known = self._counters.get(tenant)
        self._counters[tenant] = (self._level() if known is None else known) + tokens
        if tenant in self._waiting:
            self._push(tenant)

    def adopt(self, other: "FairShare") -> None:
        """Go on where another one is: the same counters, the same tenants waiting. Nobody may wait here yet."""
        self._counters = dict(other._counters)
        self._waiting = set(other._waiting)
        self._heap = list(other._heap)
        self._pushes = other._pushes
        self._last = other._last

    def keep(self, tenants: Collection[str]) -> None:
        """Of those that wait, only these still do."""
        self._waiting.intersection_update(tenants)

    def first(self) -> str | None:
        """The tenant whose turn it is; None when nobody waits."""
        while self._heap:
            counter, _, tenant = self._heap[0]
            if tenant in self._waiting and self._counters[tenant] == counter:
                return tenant
            heappop(self._heap)
        return None

    def counter(self, tenant: str) -> float:
        """Weighted tokens; 0 for one that is not known."""
        return self._counters.get(tenant, 0.0)

    @property
    def num_known(self) -> int:
        """Tenants that have a counter."""
        return len(self._counters)

    def _level(self) -> float:
        first = self.first()
        return self._last if first is None else self._counters[first]

    def _push(self, tenant: str) -> None:
        self._pushes += 1
        heappush(self._heap, (self._counters[tenant], self._pushes, tenant))
        if len(self._heap) > 4 * len(self._waiting) + 64:
            self._heap = [
                entry
                for entry in self._heap
                if entry[2] in self._waiting and self._counters[entry[2]] == entry[0]
            ]
            heapify(self._heap)

    def _forget_idle(self) -> None:
        """Idle counters that a lift would replace say nothing; of others the lowest go first."""
        if len(self._counters) <= 2 * len(self._waiting) + MAX_IDLE:
            return
        level = self._level() - self._burst
        idle = [name for name in self._counters if name not in self._waiting]
        kept = sorted((self._counters[name], name) for name in idle if self._counters[name] > level)
        keeping = {name for _, name in kept[-MAX_IDLE // 2 :]} | self._waiting
        self._counters = {name: value for name, value in self._counters.items() if name in keeping}
