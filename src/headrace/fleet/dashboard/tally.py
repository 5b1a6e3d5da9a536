"""Sums by tenant and by model since the gateway's start, and what came of late."""

from collections.abc import Iterator

from msgspec import Struct

from headrace.fleet.gateway.accounts.money import amount
from headrace.fleet.gateway.request_meter import Finished, Result
from headrace.observe.labels import BoundedNames
from headrace.observe.rates import Rate

#: Names with a row of their own; all others share one.
MAX_NAMES = 200
#: Seconds that rates cover.
WINDOW = 60.0
#: Results that are the fleet's fault.
FAILURES = frozenset({Result.BROKEN, Result.FAILED, Result.OVERLOADED})


class Sums(Struct, frozen=True, kw_only=True):
    """One row."""

    name: str
    requests: int
    errors: int
    """Of them, those that failed by the fleet's fault."""
    refused: int
    """Of them, those that were turned away with 429."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float
    saved: float
    requests_per_second: float
    """Over the last minute."""
    tokens_per_second: float
    """Prompts and answers, over the last minute."""


class _Row:
    def __init__(self) -> None:
        self.requests = self.errors = self.refused = 0
        self.prompt = self.cached = self.output = self.cost = self.saved = 0
        self.request_rate = Rate(WINDOW)
        self.token_rate = Rate(WINDOW)


class Tally:
    """Rows by name."""

    def __init__(self, now: float) -> None:
        """`now` is `Clock.monotonic`."""
        self._start = now
        self._rows: dict[str, _Row] = {}
        self._names = BoundedNames(MAX_NAMES)

    def add(self, name: str, finished: Finished, now: float) -> None:
        """One request has ended."""
        name = self._names.label(name)
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = _Row()
            row.request_rate.record(self._start, 0)
            row.token_rate.record(self._start, 0)
        came_to = finished.row
        row.requests += 1
        row.errors += finished.result in FAILURES
        row.refused += came_to.status == 429
        row.prompt += came_to.prompt_tokens
        row.cached += came_to.cached_tokens
        row.output += came_to.output_tokens
        row.cost += came_to.cost
        row.saved += finished.saved_cost + finished.saved_prefix_cost
        row.request_rate.record(now, row.requests)
        row.token_rate.record(now, row.prompt + row.output)

    def rows(self, now: float) -> Iterator[Sums]:
        """All of them, by name."""
        for name, row in sorted(self._rows.items()):
            yield Sums(
                name=name,
                requests=row.requests,
                errors=row.errors,
                refused=row.refused,
                prompt_tokens=row.prompt,
                cached_tokens=row.cached,
                output_tokens=row.output,
                cost=amount(row.cost),
                saved=amount(row.saved),
                requests_per_second=row.request_rate.per_second(now),
                tokens_per_second=row.token_rate.per_second(now),
            )
