import asyncio

import pytest
from tests.support.accounts_of import account_of, accounts_over, key
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.replicas import Price
from headrace.core.errors import BudgetExceededError, ConfigError, RateLimitError, UnavailableError
from headrace.fleet.gateway.accounts import journal as journal_module
from headrace.fleet.gateway.accounts.counters import MAX_BUCKETS, Counters
from headrace.fleet.gateway.accounts.database import Database
from headrace.fleet.gateway.accounts.journal import Journal
from headrace.fleet.gateway.accounts.local_store import LocalStore
from headrace.fleet.gateway.accounts.meters import Actual, Estimate, Hold, Meter, MeterKind
from headrace.fleet.gateway.accounts.money import NANO, cost, highest_cost, nano
from headrace.web.problems import answer_to


@pytest.fixture
def clock():
    return FakeClock()


class Opened:
    """A store on a directory, with the accounts of one key."""

    def __init__(self, path, clock, *, charge_lost: bool = True, **limits) -> None:
        database = Database(str(path))
        self.journal = Journal(database)
        self.store = LocalStore.opened(
            clock, self.journal, database.connection, charge_lost=charge_lost
        )
        self.accounts = accounts_over(
            self.store, clock, keys=[key("a", limits=limits)], directory=str(path)
        )
        self.account = account_of(self.accounts, "a")

    async def reserve(self, cost: float = 0.0, tokens: int = 0):
        estimate = Estimate(prompt_tokens=tokens, cost=nano(cost))
        return await self.accounts.reserve(self.account, estimate)

    async def state(self) -> tuple[float, float]:
        (found,) = await self.accounts.budgets(self.account)
        return found.spent, found.set_aside


def test_prices_are_per_million_tokens_and_cached_ones_may_be_cheaper() -> None:
    price = Price(input=3.0, cached_input=0.3, output=15.0)
    found = cost(price, prompt_tokens=1000, cached_tokens=400, output_tokens=200)
    assert found == round(NANO * (600 * 3.0 + 400 * 0.3 + 200 * 15.0) / 1e6)
    plain = Price(input=0.05)
    assert cost(plain, prompt_tokens=1, cached_tokens=5, output_tokens=7) == 50
    assert cost(Price(input=0.0001), prompt_tokens=1, cached_tokens=0, output_tokens=0) == 1
    assert highest_cost([price, plain], prompt_tokens=1000, output_tokens=0) == nano(0.003)
    assert highest_cost([], prompt_tokens=1000, output_tokens=0) == 0


async def test_requests_a_minute_are_a_bucket_that_says_when_to_come_back(clock) -> None:
    accounts = accounts_over(
        LocalStore(clock), clock, keys=[key("a", limits={"requests_per_minute": 6})]
    )
    account = account_of(accounts, "a")
    for _ in range(6):
        (await accounts.reserve(account, Estimate())).settle(tokens=0, cost=0)
    with pytest.raises(RateLimitError) as caught:
        await accounts.reserve(account, Estimate())
    assert caught.value.retry_after == pytest.approx(10.0)
    answer = answer_to(caught.value)
    assert (answer.status, answer.headers["retry-after"]) == (429, "10")
    assert answer.problem.code == "rate_limit_exceeded"
    clock.advance(10.0)
    await accounts.reserve(account, Estimate())
    with pytest.raises(RateLimitError):
        await accounts.reserve(account, Estimate())


async def test_a_request_that_was_never_served_does_not_count(clock) -> None:
    accounts = accounts_over(
        LocalStore(clock), clock, keys=[key("a", limits={"requests_per_minute": 1})]
    )
    account = account_of(accounts, "a")
    for _ in range(5):
        (await accounts.reserve(account, Estimate())).release()
    with await accounts.reserve(account, Estimate()), pytest.raises(RateLimitError):
        await accounts.reserve(account, Estimate())
    await accounts.reserve(account, Estimate())


async def test_tokens_a_minute_are_corrected_when_the_request_ends(clock) -> None:
    accounts = accounts_over(
        LocalStore(clock), clock, keys=[key("a", limits={"tokens_per_minute": 600})]
    )
    account = account_of(accounts, "a")
    first = await accounts.reserve(account, Estimate(prompt_tokens=100, output_tokens=400))
    with pytest.raises(RateLimitError) as caught:
        await accounts.reserve(account, Estimate(prompt_tokens=200))
    assert caught.value.retry_after == pytest.approx(10.0)
    first.settle(tokens=150, cost=0)
    await accounts.reserve(account, Estimate(prompt_tokens=450))
    with pytest.raises(RateLimitError):
        await accounts.reserve(account, Estimate(prompt_tokens=1))


async def test_a_request_larger_than_the_bucket_goes_through_a_full_one_and_leaves_a_debt(
    clock,
) -> None:
    accounts = accounts_over(
        LocalStore(clock), clock, keys=[key("a", limits={"tokens_per_minute": 600})]
    )
    account = account_of(accounts, "a")
    (await accounts.reserve(account, Estimate(prompt_tokens=1200))).settle(tokens=1200, cost=0)
    with pytest.raises(RateLimitError) as caught:
        await accounts.reserve(account, Estimate(prompt_tokens=10))
    assert caught.value.retry_after == pytest.approx(61.0)


async def test_concurrency_counts_requests_that_have_not_ended(clock) -> None:
    accounts = accounts_over(LocalStore(clock), clock, keys=[key("a", limits={"concurrency": 2})])
    account = account_of(accounts, "a")
    held = [await accounts.reserve(account, Estimate()) for _ in range(2)]
    with pytest.raises(RateLimitError, match="2 requests at once"):
        await accounts.reserve(account, Estimate())
    held[0].settle(tokens=1, cost=1)
    held[0].settle(tokens=1, cost=1)
    held[0].release()
    await accounts.reserve(account, Estimate())
    with pytest.raises(RateLimitError):
        await accounts.reserve(account, Estimate())


async def test_keys_of_a_tenant_share_its_limits_and_a_refusal_takes_nothing(clock) -> None:
    accounts = accounts_over(
        LocalStore(clock),
        clock,
        keys=[key(n, tenant="acme", limits={"requests_per_minute": 5}) for n in ("a", "b")],
        tenants=[{"name": "acme", "limits": {"concurrency": 1}}],
    )
    held = await accounts.reserve(account_of(accounts, "a"), Estimate())
    for _ in range(10):
        with pytest.raises(RateLimitError, match="tenant 'acme'"):
            await accounts.reserve(account_of(accounts, "b"), Estimate())
    held.release()
    for _ in range(5):
        (await accounts.reserve(account_of(accounts, "b"), Estimate())).settle(tokens=0, cost=0)


async def test_200_requests_at_once_on_a_budget_for_50(clock, tmp_path) -> None:
    opened = Opened(tmp_path, clock, budgets=[{"amount": 50.0, "per": "total"}])
    results = await asyncio.gather(
        *(opened.reserve(1.0) for _ in range(200)), return_exceptions=True
    )
    admitted = [each for each in results if not isinstance(each, Exception)]
    assert len(admitted) == 50
    assert all(isinstance(each, BudgetExceededError) for each in results if each not in admitted)
    for each in admitted:
        each.settle(tokens=1, cost=nano(1.0))
    assert await opened.state() == (50.0, 0.0)
    with pytest.raises(BudgetExceededError) as caught:
        await opened.reserve(0.000_000_001)
    assert caught.value.retry_after is None
    answer = answer_to(caught.value)
    assert (answer.status, answer.problem.code) == (429, "insufficient_quota")
    assert answer.headers == {"x-should-retry": "false"}
    opened.journal.close()


async def test_what_is_only_set_aside_may_come_back_soon(clock, tmp_path) -> None:
    opened = Opened(tmp_path, clock, budgets=[{"amount": 1.0, "per": "day"}])
    first = await opened.reserve(0.9)
    with pytest.raises(BudgetExceededError) as caught:
        await opened.reserve(0.5)
    assert caught.value.retry_after == 1.0
    first.settle(tokens=1, cost=nano(0.2))
    (await opened.reserve(0.5)).settle(tokens=1, cost=nano(0.5))
    assert await opened.state() == (0.7, 0.0)
    opened.journal.close()


async def test_a_budget_begins_anew_with_its_period(clock, tmp_path) -> None:
    opened = Opened(tmp_path, clock, budgets=[{"amount": 1.0, "per": "day"}])
    (await opened.reserve(1.0)).settle(tokens=1, cost=nano(1.0))
    with pytest.raises(BudgetExceededError) as caught:
        await opened.reserve(0.1)
    # 1,700,000,000 is 22:13:20 UTC.
    assert caught.value.retry_after == 6400.0
    clock.advance(6399.0)
    with pytest.raises(BudgetExceededError):
        await opened.reserve(0.1)
    clock.advance(1.0)
    late = await opened.reserve(1.0)
    await opened.store.tidy()
    late.settle(tokens=1, cost=nano(0.25))
    assert await opened.state() == (0.25, 0.0)
    opened.journal.close()


async def test_what_costs_nothing_is_not_stopped_by_a_budget(clock, tmp_path) -> None:
    opened = Opened(tmp_path, clock, budgets=[{"amount": 0.0}])
    with pytest.raises(BudgetExceededError):
        await opened.reserve(0.1)
    (await opened.reserve(0.0)).release()
    opened.journal.close()


@pytest.mark.parametrize(("charge_lost", "spent"), [(True, 1.5), (False, 0.5)])
async def test_a_gateway_that_died_is_settled_at_the_next_start(
    clock, tmp_path, charge_lost, spent
) -> None:
    limits = {"budgets": [{"amount": 10.0, "per": "month"}], "concurrency": 2}
    opened = Opened(tmp_path, clock, **limits)
    (await opened.reserve(2.0)).settle(tokens=1, cost=nano(0.5))
    (await opened.reserve(5.0)).release()
    await opened.reserve(1.0)  # running when the process dies
    opened.journal.close()

    for _ in range(2):
        opened = Opened(tmp_path, clock, charge_lost=charge_lost, **limits)
        assert await opened.state() == (spent, 0.0)
        opened.journal.close()


async def test_money_of_past_periods_is_not_counted_again(clock, tmp_path) -> None:
    limits = {"budgets": [{"amount": 1.0, "per": "day"}]}
    opened = Opened(tmp_path, clock, **limits)
    (await opened.reserve(1.0)).settle(tokens=1, cost=nano(1.0))
    opened.journal.close()
    clock.advance(86_400.0)
    opened = Opened(tmp_path, clock, **limits)
    await opened.reserve(1.0)
    opened.journal.close()


async def test_a_disk_that_fails_stops_promises_and_loses_nothing(
    clock, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_BACKLOG", 3)
    monkeypatch.setattr(journal_module, "RETRY_PERIOD", 0.01)
    opened = Opened(tmp_path, clock, budgets=[{"amount": 10.0}])
    write = opened.journal._write
    monkeypatch.setattr(opened.journal, "_write", lambda _group: False)
    held = [await opened.reserve(1.0) for _ in range(3)]
    with pytest.raises(UnavailableError):
        await opened.reserve(1.0)
    for each in held:
        each.settle(tokens=1, cost=nano(1.0))
    monkeypatch.setattr(opened.journal, "_write", write)
    assert await asyncio.to_thread(opened.journal.flush)
    opened.journal.close()
    opened = Opened(tmp_path, clock, budgets=[{"amount": 10.0}])
    assert await opened.state() == (3.0, 0.0)
    opened.journal.close()


def test_a_group_with_a_fault_is_not_half_written(clock, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(journal_module, "RETRY_PERIOD", 0.01)
    database = Database(str(tmp_path))
    journal = Journal(database)
    good = ("INSERT INTO money (meter, spent) VALUES ('m', 1)", ())
    journal.put(good, ("INSERT INTO nowhere VALUES (1)", ()))
    assert not journal.flush(timeout=0.1)
    journal.close()
    again = Database(str(tmp_path))
    assert again.connection.execute("SELECT count(*) FROM money").fetchone() == (0,)
    again.close()


@pytest.mark.parametrize("poison", [2**63, -(10**30), "\ud800"])
def test_a_value_that_no_database_takes_keeps_nothing_else_from_being_written(
    tmp_path, poison
) -> None:
    journal = Journal(Database(str(tmp_path)))
    add = "INSERT INTO money (meter, spent) VALUES (?, ?)"
    journal.put(
        (add, ("before", 1)), (add, ("bad", poison) if isinstance(poison, int) else (poison, 1))
    )
    assert journal.flush()
    journal.put((add, ("after", 2)), (add, ("after", 2)))  # it can be there only once
    assert journal.flush()
    journal.close()
    again = Database(str(tmp_path))
    found = again.connection.execute("SELECT meter, spent FROM money ORDER BY meter").fetchall()
    assert found == [("after", 2), ("before", 1)]
    again.close()


def test_nobody_else_may_read_the_accounts(tmp_path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "accounts.db").touch(mode=0o644)
    journal = Journal(Database(str(tmp_path)))
    journal.put(("INSERT INTO money (meter, spent) VALUES ('m', 1)", ()))
    assert journal.flush()
    found = {file.name: file.stat().st_mode & 0o077 for file in tmp_path.glob("accounts.db*")}
    assert len(found) == 3
    assert not any(found.values()), found
    journal.close()


def test_a_directory_belongs_to_one_gateway(tmp_path) -> None:
    first = Database(str(tmp_path))
    with pytest.raises(ConfigError, match="another gateway"):
        Database(str(tmp_path))
    first.close()
    Database(str(tmp_path)).close()


def test_a_file_that_is_no_database_is_refused(tmp_path) -> None:
    (tmp_path / "accounts.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(ConfigError, match="cannot be used"):
        Database(str(tmp_path))


def test_a_database_of_another_version_is_refused(tmp_path) -> None:
    first = Database(str(tmp_path))
    first.connection.execute("PRAGMA user_version = 99")
    first.close()
    with pytest.raises(ConfigError, match="another version"):
        Database(str(tmp_path))


def test_buckets_that_are_full_again_are_forgotten() -> None:
    counters = Counters()
    for number in range(2 * MAX_BUCKETS):
        meter = Meter(f"k/{number}/requests", MeterKind.REQUESTS, 60, 1, "x")
        hold = Hold(str(number), (meter,), 0.0)
        assert counters.take(hold, monotonic=float(number), wall=0.0) is None
        counters.settle(hold.id, Actual(), monotonic=float(number))
    assert len(counters._buckets) <= MAX_BUCKETS + 1


async def test_a_clock_that_was_ahead_does_not_make_money_new(clock, tmp_path) -> None:
    limits = {"budgets": [{"amount": 1.0, "per": "day"}]}
    opened = Opened(tmp_path, clock, **limits)
    (await opened.reserve(1.0)).settle(tokens=1, cost=nano(1.0))
    for is_restarted in (False, True):
        clock.set_wall(86_400.0)
        await opened.store.tidy()
        if is_restarted:
            opened.journal.close()
            opened = Opened(tmp_path, clock, **limits)
        clock.set_wall(-86_400.0)
        with pytest.raises(BudgetExceededError):
            await opened.reserve(1.0)
    opened.journal.close()


def test_many_buckets_in_use_are_not_looked_through_each_time() -> None:
    counters = Counters()
    for number in range(MAX_BUCKETS + 2):
        meter = Meter(f"k/{number}/requests", MeterKind.REQUESTS, 60, 1, "x")
        hold = Hold(str(number), (meter,), 0.0)
        assert counters.take(hold, monotonic=0.0, wall=0.0) is None
        counters.settle(hold.id, Actual(), monotonic=0.0)
    assert len(counters._buckets) == MAX_BUCKETS + 2
    assert counters._sweep_beyond > MAX_BUCKETS + 2


@pytest.mark.parametrize(
    ("per", "words"),
    [
        ("day", "of 1.5 a day of key 'a' has not enough left for this request, which may cost 1; it begins anew at 2023-11-15 00:00 UTC."),
        ("month", "of 1.5 a month of key 'a' has not enough left for this request, which may cost 1; it begins anew at 2023-12-01 00:00 UTC."),
        ("total", "of 1.5 in all of key 'a' has not enough left for this request, which may cost 1; it does not begin anew."),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_period_of_the_budget_and_its_end(
    clock, tmp_path, per: str, words: str
) -> None:
    opened = Opened(tmp_path, clock, budgets=[{"amount": 1.5, "per": per}])
    await opened.reserve(1.0)
    with pytest.raises(BudgetExceededError) as caught:
        await opened.reserve(1.0)
    assert str(caught.value) == f"The budget {words}"
    assert caught.value.retry_after == 1.0  # the first may cost less
    opened.journal.close()


@pytest.mark.parametrize(("per", "words"), [("day", "a day"), ("total", "in all")])
async def test_what_is_more_than_a_budget_is_not_told_to_wait(clock, tmp_path, per, words) -> None:
    opened = Opened(tmp_path, clock, budgets=[{"amount": 1.5, "per": per}])
    with pytest.raises(BudgetExceededError) as caught:
        await opened.reserve(2.0)
    assert str(caught.value) == (
        f"The budget of 1.5 {words} of key 'a' can never cover this request, which may cost 2; "
        "send a smaller max_tokens, or a shorter prompt."
    )
    assert caught.value.retry_after is None
    await opened.reserve(1.5)
    opened.journal.close()
