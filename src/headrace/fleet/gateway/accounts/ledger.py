"""The usage ledger: one row for each request, written behind in groups. It never holds a request up."""

from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headrace.config.fleet.accounts import UsageConfig
from headrace.core.clock import Clock
from headrace.fleet.gateway.accounts.journal import Journal, Statement
from headrace.fleet.gateway.accounts.money import amount
from headrace.observe.catalogue import (
    ACCOUNT_COST,
    ACCOUNT_REQUESTS,
    ACCOUNT_TOKENS,
    USAGE_DROPPED,
)
from headrace.observe.labels import BoundedNames
from headrace.observe.metrics import Metrics

_DAY: Final = 86_400.0


class UsageRow(Struct, frozen=True, kw_only=True):
    """What is kept of a request. Its fields are the table's columns."""

    time: float
    """When it came, in seconds since the epoch."""
    request_id: str
    key: str
    tenant: str
    model: str
    replica: str = ""
    """Where it ended; empty: nowhere, or answered from a cache."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt, out of a prefix cache."""
    output_tokens: int = 0
    cost: int = 0
    """Billionths."""
    ttft: float | None = None
    """Seconds from its arrival to the first byte of its answer."""
    latency: float = 0.0
    """Seconds from its arrival to its end."""
    status: int = 200
    """HTTP; 499: its client left."""


COLUMNS: Final = UsageRow.__struct_fields__
_INSERT: Final = (
    f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
)
_DROP_MANY: Final = (
    "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE id <= (SELECT max(id) FROM usage) - ? "
    "ORDER BY id LIMIT ?)"
)
_DROP_OLD: Final = (
    "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE time < ? ORDER BY time LIMIT ?)"
)


class Ledger:
    """Counts every request in the metrics, and writes it down where there is a journal."""

    def __init__(
        self,
        config: UsageConfig,
        clock: Clock,
        metrics: Metrics,
        journal: Journal | None,
        model_label: Callable[[str], str] = str,
    ) -> None:
        """`model_label` is a model's name in metrics."""
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._journal = journal
        self._rows: deque[UsageRow] = deque()
        self._keys = BoundedNames()
        self._label = model_label

    def record(self, row: UsageRow) -> None:
        """A request has ended. Where the disk does not keep up, rows are dropped and counted."""
        self.count(row)
        if self._journal is None:
            return
        if len(self._rows) >= self._config.max_buffered:
            self._metrics.add(USAGE_DROPPED, ())
            return
        self._rows.append(row)

    def count(self, row: UsageRow) -> None:
        """In the metrics only: a request that came to no replica. A client that is turned away a thousand times a
        second must not drive out rows of what was used.
        """
        key, model = self._keys.label(row.key), self._label(row.model)
        self._metrics.add(ACCOUNT_REQUESTS, (model, key, str(row.status)))
        for kind, tokens in (
            ("input", row.prompt_tokens - row.cached_tokens),
            ("cached", row.cached_tokens),
            ("output", row.output_tokens),
        ):
            if tokens > 0:
                self._metrics.add(ACCOUNT_TOKENS, (model, key, kind), tokens)
        if row.cost:
            self._metrics.add(ACCOUNT_COST, (model, key), amount(row.cost))

    def flush(self) -> None:
        """Hand over what was recorded, and let go of what is too old or too much. Does not wait.

        While the journal is behind, rows stay here: their number is bounded, and money goes first.
        """
        if self._journal is None or not self._rows or self._journal.is_behind:
            return
        statements: list[Statement] = [
            (_INSERT, tuple(getattr(row, name) for name in COLUMNS)) for row in self._rows
        ]
        # Twice what comes in, so that a bound that was lowered is reached too, without one long delete.
        batch = 1000 + 2 * len(statements)
        self._rows.clear()
        oldest = self._clock.wall() - self._config.max_age_days * _DAY
        self._journal.put(
            *statements, (_DROP_MANY, (self._config.max_rows, batch)), (_DROP_OLD, (oldest, batch))
        )

    @property
    def num_buffered(self) -> int:
        """Rows that were not handed over."""
        return len(self._rows)
