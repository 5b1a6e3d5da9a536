import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.accounts_of import account_of, accounts_config, key, scope_with
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.config.fleet.root import FleetConfig
from headrace.core.errors import AuthenticationError, BudgetExceededError, ConfigError
from headrace.fleet.gateway.accounts.build import Books
from headrace.fleet.gateway.accounts.ledger import UsageRow
from headrace.fleet.gateway.accounts.meters import Estimate
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.accounts.usage import UsageFilter
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics

ROOT = Path(__file__).parents[5]


def books(**accounts) -> Books:
    return Books(FleetConfig(accounts=accounts_config(**accounts)), FakeClock(), Metrics())


async def test_without_tables_all_are_let_in_and_nothing_is_written(tmp_path) -> None:
    opened = books()
    await opened.start()
    account = opened.accounts.authenticate(scope_with())
    with await opened.accounts.reserve(account, Estimate(prompt_tokens=10)) as reservation:
        reservation.settle(tokens=10, cost=0)
    opened.ledger.record(
        UsageRow(time=0.0, request_id="r", key=account.key, tenant=account.tenant, model="m")
    )
    assert opened.usage is None
    opened.write_gauges()
    assert opened._metrics.value(catalogue.ACCOUNT_HOLDS, ()) == 0
    await opened.close()


def test_until_the_created_keys_are_known_nobody_gets_in_without_one() -> None:
    with pytest.raises(AuthenticationError):
        books().accounts.authenticate(scope_with())


async def test_with_a_directory_money_and_usage_outlive_the_gateway(tmp_path) -> None:
    tables = {
        "directory": str(tmp_path / "state"),
        "keys": [key("a", limits={"budgets": [{"amount": 1.0}]})],
    }
    opened = books(**tables)
    await opened.start()
    reservation = await opened.accounts.reserve(
        account_of(opened.accounts, "a"), Estimate(cost=nano(1.0))
    )
    opened.write_gauges()
    assert opened._metrics.value(catalogue.ACCOUNT_HOLDS, ()) == 1
    with pytest.raises(BudgetExceededError):
        await opened.accounts.reserve(account_of(opened.accounts, "a"), Estimate(cost=1))
    assert opened._metrics.value(catalogue.ACCOUNT_REFUSED, ("a", "budget")) == 1
    reservation.settle(tokens=1, cost=nano(0.75))
    opened.ledger.record(
        UsageRow(
            time=FakeClock().wall(), request_id="r", key="a", tenant="a", model="m", cost=nano(0.75)
        )
    )
    await opened.close()

    opened = books(**tables)
    await opened.start()
    (state,) = await opened.accounts.budgets(account_of(opened.accounts, "a"))
    assert (state.spent, state.owner, state.amount) == (0.75, "key 'a'", 1.0)
    assert opened.usage is not None
    assert opened.usage.sums(UsageFilter())[0].cost == 0.75
    await opened.close()


def test_a_directory_that_another_gateway_has_is_refused(tmp_path) -> None:
    first = books(directory=str(tmp_path))
    with pytest.raises(ConfigError, match="another gateway"):
        books(directory=str(tmp_path))
    asyncio.run(first.close())


def test_a_bad_address_of_redis_gives_the_directory_back(tmp_path) -> None:
    with pytest.raises(ConfigError, match="redis"):
        books(directory=str(tmp_path), redis={"url": "http://x"})
    asyncio.run(books(directory=str(tmp_path)).close())


VICTIM = """
import asyncio, os, signal, sys
from headrace.fleet.gateway.accounts.meters import Estimate
from tests.unit.fleet.gateway.accounts.test_books import account_of, books, key

async def main():
    limits = {"budgets": [{"amount": 100.0, "per": "total"}]}
    opened = books(directory=sys.argv[1], keys=[key("a", limits=limits)])
    await opened.start()
    account = account_of(opened.accounts, "a")
    for number in range(20):
        reservation = await opened.accounts.reserve(account, Estimate(cost=10**9))
        if number % 2:
            reservation.settle(tokens=1, cost=10**8)
    opened._journal.flush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_kill_9_between_reserving_and_settling_is_charged_at_the_next_start(tmp_path) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", VICTIM, str(tmp_path)],
        cwd=ROOT,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == -9
    opened = books(
        directory=str(tmp_path),
        keys=[key("a", limits={"budgets": [{"amount": 100.0, "per": "total"}]})],
    )
    await opened.start()
    (state,) = await opened.accounts.budgets(account_of(opened.accounts, "a"))
    assert (state.spent, state.set_aside) == (10 * 1.0 + 10 * 0.1, 0.0)
    assert opened._metrics.value(catalogue.ACCOUNT_LOST, ()) == 10
    await opened.close()


def test_redis_is_imported_only_where_it_is_configured() -> None:
    code = "import sys, headrace.fleet.gateway.accounts.build; print('redis' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "False"
