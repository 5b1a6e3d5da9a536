import asyncio
import csv
import io
import json
import sqlite3
from contextlib import closing

import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.accounts import UsageConfig
from headrace.core.errors import BadRequestError, ConfigError, NotFoundError
from headrace.fleet.gateway.accounts.database import Database
from headrace.fleet.gateway.accounts.desk import read_new_key, usage_export, usage_sums
from headrace.fleet.gateway.accounts.journal import Journal
from headrace.fleet.gateway.accounts.ledger import COLUMNS, Ledger, UsageRow
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.accounts.usage import (
    PAGE,
    UsageFilter,
    UsageReader,
    filter_of,
    groups_of,
)
from headrace.observe import catalogue
from headrace.observe.labels import BoundedNames
from headrace.observe.metrics import Metrics

#: 2023-11-14 22:13:20 UTC.
NOW = 1_700_000_000.0


class Written:
    """A ledger on a directory."""

    def __init__(self, path, **config) -> None:
        self.database = Database(str(path))
        self.journal = Journal(self.database)
        self.metrics = Metrics()
        self.clock = FakeClock(wall=NOW)
        self.ledger = Ledger(UsageConfig(**config), self.clock, self.metrics, self.journal)
        self.reader = UsageReader(self.database.file)

    def record(self, number: int = 0, **fields) -> None:
        row = {
            "time": NOW, "request_id": f"r{number}", "key": "a", "tenant": "acme", "model": "m",
            "replica": "one", "prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 10,
            "cost": nano(0.25), "ttft": 0.5, "latency": 2.0, "status": 200,
        }  # fmt: skip
        self.ledger.record(UsageRow(**{**row, **fields}))

    def flush(self) -> None:
        self.ledger.flush()
        assert self.journal.flush()

    def count(self) -> int:
        (found,) = self.reader.sums(UsageFilter())
        return found.requests


@pytest.fixture
def written(tmp_path):
    found = Written(tmp_path)
    yield found
    found.journal.close()


def test_sums_by_key_tenant_model_and_day(written) -> None:
    written.record(1)
    written.record(2, key="b", cost=nano(0.5), ttft=1.5)
    written.record(3, key="b", tenant="else", model="n", status=502, ttft=None, output_tokens=0)
    written.record(4, time=NOW + 2 * 3600, replica="two")
    written.flush()
    (total,) = written.reader.sums(UsageFilter())
    assert (total.requests, total.errors, total.group) == (4, 1, {})
    assert (total.prompt_tokens, total.cached_tokens, total.output_tokens) == (400, 160, 30)
    assert (total.cost, total.mean_latency) == (1.25, 2.0)
    assert total.mean_ttft == pytest.approx(2.5 / 3)
    by_day = written.reader.sums(UsageFilter(), ("tenant", "day"))
    assert [(s.group["tenant"], s.group["day"], s.requests) for s in by_day] == [
        ("acme", "2023-11-14", 2),
        ("acme", "2023-11-15", 1),
        ("else", "2023-11-14", 1),
    ]
    by_status = written.reader.sums(UsageFilter(key="b"), ("status",))
    assert [(s.group["status"], s.cost) for s in by_status] == [("200", 0.5), ("502", 0.25)]


def test_filters_bound_time_and_names(written) -> None:
    for number in range(10):
        written.record(number, time=NOW + number, model=f"m{number % 2}")
    written.flush()
    rows = UsageFilter(since=NOW + 2, until=NOW + 8, model="m1")
    assert [row["request_id"] for _, row in written.reader.page(rows)] == ["r3", "r5", "r7"]
    assert written.reader.sums(UsageFilter(tenant="' OR 1=1 --"))[0].requests == 0


def test_an_empty_ledger_sums_to_nothing(written) -> None:
    (total,) = written.reader.sums(UsageFilter())
    assert (total.requests, total.cost, total.mean_ttft) == (0, 0.0, None)
    assert written.reader.sums(UsageFilter(), ("key",)) == []


def test_exports_have_all_rows_and_no_formulas(written) -> None:
    for number in range(PAGE + 3):
        written.record(number, key="=cmd()" if number == 0 else "a")
    written.flush()
    text = "".join(written.reader.export(UsageFilter(), "csv"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == PAGE + 3
    assert rows[0]["key"] == "'=cmd()"
    assert tuple(rows[0]) == COLUMNS
    lines = "".join(written.reader.export(UsageFilter(), "jsonl")).splitlines()
    assert len(lines) == PAGE + 3
    first = json.loads(lines[0])
    assert (first["key"], first["cost"], first["ttft"]) == ("=cmd()", 0.25, 0.5)


async def test_operators_ask_in_words(written) -> None:
    written.record(1)
    written.record(2, tenant="else")
    written.flush()
    sums = await usage_sums(written.reader, {"by": "tenant", "since": "2023-11-14"})
    assert [each.group["tenant"] for each in sums] == ["acme", "else"]
    pieces = usage_export(written.reader, {"format": "csv", "tenant": "else"})
    text = "".join([piece async for piece in pieces])
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"since": "yesterday"}, "since"),
        ({"until": "2023-13-01"}, "until"),
        ({"by": "prompt"}, "by"),
        ({"by": "key,key"}, "by"),
    ],
)
async def test_a_question_that_cannot_be_answered_names_its_field(written, query, param) -> None:
    with pytest.raises(BadRequestError) as caught:
        await usage_sums(written.reader, query)
    assert caught.value.param == param


async def test_an_export_in_an_unknown_format_is_refused(written) -> None:
    with pytest.raises(BadRequestError) as caught:
        await anext(usage_export(written.reader, {"format": "xlsx"}))
    assert caught.value.param == "format"


async def test_without_a_directory_there_is_no_ledger(tmp_path) -> None:
    with pytest.raises(NotFoundError):
        await usage_sums(None, {})
    with pytest.raises(ConfigError, match="no ledger"):
        UsageReader(tmp_path / "accounts.db")


def test_dates_are_utc_s_unless_they_say_otherwise() -> None:
    assert filter_of({"since": "2023-11-14T22:13:20"}).since == NOW
    assert filter_of({"since": "2023-11-14T23:13:20+01:00"}).since == NOW
    assert filter_of({"since": "1700000000"}).since == NOW
    assert groups_of(" tenant, day ") == ("tenant", "day")


def test_rows_beyond_the_buffer_are_counted_and_never_wait(tmp_path) -> None:
    written = Written(tmp_path, max_buffered=5)
    for number in range(8):
        written.record(number)
    assert written.metrics.value(catalogue.USAGE_DROPPED, ()) == 3
    written.flush()
    written.record(9)
    written.flush()
    assert written.count() == 6
    # What was dropped from the ledger still counts in the metrics.
    assert written.metrics.value(catalogue.ACCOUNT_REQUESTS, ("m", "a", "200")) == 9
    written.journal.close()


def test_a_journal_that_is_behind_gets_no_rows(tmp_path, monkeypatch) -> None:
    written = Written(tmp_path)
    written.record()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "is_behind", True)
        written.ledger.flush()
    assert written.ledger.num_buffered == 1
    written.flush()
    assert written.count() == 1
    written.journal.close()


def test_rows_are_bounded_by_number_and_age(tmp_path) -> None:
    written = Written(tmp_path, max_rows=10, max_age_days=2.0)
    for number in range(25):
        written.record(number)
    written.flush()
    assert written.count() == 10
    written.clock.advance(3 * 86_400.0)
    written.record(26, time=written.clock.wall())
    written.flush()
    assert [row["request_id"] for _, row in written.reader.page(UsageFilter())] == ["r26"]
    written.journal.close()


def test_the_metrics_know_tokens_by_kind_and_money(tmp_path) -> None:
    written = Written(tmp_path)
    written.record()
    value = written.metrics.value
    kinds = {
        k: value(catalogue.ACCOUNT_TOKENS, ("m", "a", k)) for k in ("input", "cached", "output")
    }
    assert kinds == {"input": 60, "cached": 40, "output": 10}
    assert value(catalogue.ACCOUNT_COST, ("m", "a")) == 0.25
    written.journal.close()


def test_no_text_of_a_request_has_a_column(written) -> None:
    with closing(sqlite3.connect(written.database.file)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(usage)")]
    assert columns == ["id", *COLUMNS]
    assert not {"prompt", "text", "body", "messages"} & set(columns)


async def test_reading_does_not_stop_writing(written) -> None:
    for number in range(2000):
        written.record(number)
    written.flush()
    reading = asyncio.create_task(usage_sums(written.reader, {"by": "key,model,day"}))
    written.record(2001)
    written.flush()
    (found,) = await reading
    assert found.requests in (2000, 2001)


def test_label_values_are_bounded() -> None:
    names = BoundedNames(2)
    assert [names.label(name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"name": 1}', "name"),
        (b'{"name": "a", "limits": {"concurrency": 0}}', "limits.concurrency"),
        (b'{"tenant": "a"}', "name"),
        (b'{"name": "a", "secret": 1}', None),
        (b"{", None),
        (b"\xff", None),
    ],
)
def test_a_body_that_is_no_key_is_refused(body, param) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_new_key(body)
    assert caught.value.param == param


def test_a_key_s_body_may_have_limits() -> None:
    found = read_new_key(b'{"name": "a", "limits": {"budgets": [{"amount": 5, "per": "day"}]}}')
    assert found.limits.budgets[0].amount == 5.0
