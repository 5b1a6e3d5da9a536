"""The ledger, read: sums by key, tenant, model, replica, day or status, and rows for export."""

import csv
import io
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.core.errors import BadRequestError, ConfigError
from headrace.fleet.gateway.accounts.ledger import COLUMNS
from headrace.fleet.gateway.accounts.money import amount

#: What sums can be grouped by, as columns.
GROUPS: Final = {
    "key": "key",
    "tenant": "tenant",
    "model": "model",
    "replica": "replica",
    "day": "strftime('%Y-%m-%d', time, 'unixepoch')",
    "status": "CAST(status AS TEXT)",
}
MAX_GROUPS: Final = 10_000
#: Rows that are read at once for an export.
PAGE: Final = 1000
FORMATS: Final = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


class UsageFilter(Struct, frozen=True, kw_only=True):
    """Which rows; what is not set does not matter."""

    since: float | None = None
    """Seconds since the epoch, inclusive."""
    until: float | None = None
    """Exclusive."""
    key: str | None = None
    tenant: str | None = None
    model: str | None = None


class UsageSum(Struct, frozen=True, kw_only=True):
    """Sums over the rows of one group."""

    group: dict[str, str]
    requests: int
    errors: int
    """With a status of 400 or more."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float
    mean_ttft: float | None
    mean_latency: float


class UsageReader:
    """Reads the ledger of a directory, also while a gateway writes it. For one thread at a time; not the event loop's."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError where there is none."""
        if not file.exists():
            raise ConfigError(f"There is no ledger at {file}.")
        self._file = file

    def sums(self, rows: UsageFilter, by: tuple[str, ...] = ()) -> list[UsageSum]:
        """In the order of the groups' names; at most `MAX_GROUPS`. `by`: words of `GROUPS`."""
        where, values = _where(rows)
        columns = [GROUPS[name] for name in by]
        picked = "".join(f"{column}, " for column in columns)
        text = (
            f"SELECT {picked}count(*), coalesce(sum(status >= 400), 0), coalesce(sum(prompt_tokens), 0), "
            "coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost), 0), avg(ttft), "
            f"coalesce(avg(latency), 0.0) FROM usage{where}"
        )
        if columns:
            places = ", ".join(str(number + 1) for number in range(len(columns)))
            text += f" GROUP BY {places} ORDER BY {places} LIMIT {MAX_GROUPS}"
        with closing(self._connect()) as db:
            found = db.execute(text, values).fetchall()
        return [_sum(by, row) for row in found]

    def page(
        self, rows: UsageFilter, after: int = 0, limit: int = PAGE
    ) -> list[tuple[int, dict[str, Any]]]:
        """Rows in the order in which they were written, with their numbers, from the one behind `after` on."""
        where, values = _where(rows)
        condition = f"{where} AND id > ?" if where else " WHERE id > ?"
        text = f"SELECT id, {', '.join(COLUMNS)} FROM usage{condition} ORDER BY id LIMIT ?"
        with closing(self._connect()) as db:
            found = db.execute(text, (*values, after, limit)).fetchall()
        return [(row[0], _shown(dict(zip(COLUMNS, row[1:], strict=True)))) for row in found]

    def export(self, rows: UsageFilter, form: str) -> Iterator[str]:
        """The rows as text, piece by piece: `jsonl` or `csv`."""
        after = 0
        yield head(form)
        while page := self.page(rows, after):
            after = page[-1][0]
            yield written([row for _, row in page], form)

    def _connect(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                f"{self._file.absolute().as_uri()}?mode=ro", uri=True, timeout=10
            )
        except sqlite3.Error as error:
            raise ConfigError(f"The ledger at {self._file} cannot be read: {error}.") from None


def head(form: str) -> str:
    """What comes before the rows."""
    return ",".join(COLUMNS) + "\n" if form == "csv" else ""


def written(rows: list[dict[str, Any]], form: str) -> str:
    """Rows in a format of `FORMATS`."""
    if form == "jsonl":
        return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_harmless(row[name]) for name in COLUMNS] for row in rows)
    return text.getvalue()


def filter_of(query: Mapping[str, str]) -> UsageFilter:
    """From the query of an address, or a command line's words. Raises BadRequestError that names the field."""
    return UsageFilter(
        since=_time("since", query.get("since")),
        until=_time("until", query.get("until")),
        key=query.get("key"),
        tenant=query.get("tenant"),
        model=query.get("model"),
    )


def groups_of(text: str) -> tuple[str, ...]:
    """`tenant,day` → its words. Raises BadRequestError."""
    names = tuple(name for name in text.replace(" ", "").split(",") if name)
    for number, name in enumerate(names):
        if name not in GROUPS or name in names[:number]:
            raise BadRequestError(f"'by': any of {', '.join(GROUPS)}, each once.", param="by")
    return names


def format_of(text: str) -> str:
    """Raises BadRequestError."""
    if text not in FORMATS:
        raise BadRequestError(f"'format': {' or '.join(FORMATS)}.", param="format")
    return text


def _time(field: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError(
            f"'{field}': a date such as 2026-11-30, or seconds since the epoch.", param=field
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _where(rows: UsageFilter) -> tuple[str, tuple[Any, ...]]:
    tests = {
        "time >= ?": rows.since,
        "time < ?": rows.until,
        "key = ?": rows.key,
        "tenant = ?": rows.tenant,
        "model = ?": rows.model,
    }
    used = {test: value for test, value in tests.items() if value is not None}
    return (f" WHERE {' AND '.join(used)}" if used else ""), tuple(used.values())


def _sum(by: tuple[str, ...], row: tuple[Any, ...]) -> UsageSum:
    requests, errors, prompt, cached, output, cost, ttft, latency = row[len(by) :]
    return UsageSum(
        group=dict(zip(by, row[: len(by)], strict=True)),
        requests=requests,
        errors=errors,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        cost=amount(cost),
        mean_ttft=ttft,
        mean_latency=latency,
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "cost": amount(row["cost"])}


def _harmless(value: object) -> object:
    """A spreadsheet must not take a name for a formula."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
