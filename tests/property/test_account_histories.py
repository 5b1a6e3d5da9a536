"""Random histories of reservations, ends, deaths and time against a plain model: money adds up to a billionth."""

import asyncio
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.accounts_of import account_of, accounts_over, key
from tests.support.fake_clock import FakeClock

from headrace.core.errors import BudgetExceededError, RateLimitError
from headrace.fleet.gateway.accounts.counters import Counters
from headrace.fleet.gateway.accounts.database import Database
from headrace.fleet.gateway.accounts.journal import Journal
from headrace.fleet.gateway.accounts.local_store import LocalStore
from headrace.fleet.gateway.accounts.meters import Actual, Estimate, Hold, Meter, MeterKind

BUDGET = 1000
ACTIONS = st.one_of(
    st.tuples(st.just("reserve"), st.sampled_from("ab"), st.integers(1, 400)),
    st.tuples(st.just("settle"), st.integers(0, 20), st.integers(0, 500)),
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("die")),
)


class World:
    """Two keys of one tenant with a budget in total, on a disk; and what should be there."""

    def __init__(self, path: str) -> None:
        self.path, self.clock = path, FakeClock()
        self.spent = {"a": 0, "b": 0}
        self.open: list = []
        self.start()

    def start(self) -> None:
        database = Database(self.path)
        self.journal = Journal(database)
        store = LocalStore.opened(self.clock, self.journal, database.connection, charge_lost=True)
        budget = {"budgets": [{"amount": BUDGET / 1e9, "per": "total"}], "concurrency": 5}
        self.accounts = accounts_over(
            store,
            self.clock,
            keys=[key(name, tenant="t", limits=budget) for name in "ab"],
            tenants=[{"name": "t", "limits": {"budgets": [{"amount": 1.5 * BUDGET / 1e9}]}}],
            directory=self.path,
        )

    async def act(self, action: tuple) -> None:
        match action:
            case ("reserve", name, cost):
                await self.reserve(name, cost)
            case ("settle", index, cost) if self.open:
                name, _, reservation = self.open.pop(index % len(self.open))
                reservation.settle(tokens=1, cost=cost)
                reservation.release()
                self.spent[name] += cost
            case ("release", index) if self.open:
                self.open.pop(index % len(self.open))[2].release()
            case ("die",):
                self.journal.close()
                for name, cost, _ in self.open:
                    self.spent[name] += cost
                self.open = []
                self.start()
            case _:
                pass

    async def reserve(self, name: str, cost: int) -> None:
        used = {n: self.spent[n] + sum(c for o, c, _ in self.open if o == n) for n in "ab"}
        num_open = sum(1 for owner, _, _ in self.open if owner == name)
        fits = used[name] + cost <= BUDGET and sum(used.values()) + cost <= 1.5 * BUDGET
        try:
            found = await self.accounts.reserve(
                account_of(self.accounts, name), Estimate(cost=cost)
            )
        except RateLimitError:
            assert num_open >= 5
        except BudgetExceededError:
            assert not fits
        else:
            assert fits
            assert num_open < 5
            self.open.append((name, cost, found))

    async def check(self) -> None:
        for name in "ab":
            own, shared = await self.accounts.budgets(account_of(self.accounts, name))
            held = sum(cost for owner, cost, _ in self.open if owner == name)
            assert round(own.spent * 1e9) == self.spent[name]
            assert round(own.set_aside * 1e9) == held
            assert round(shared.spent * 1e9) == sum(self.spent.values())


@settings(max_examples=40)
@given(st.lists(ACTIONS, max_size=40))
def test_money_adds_up_over_any_history(actions: list[tuple]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as path:
            world = World(path)
            for action in actions:
                await world.act(action)
                await world.check()
            for _, _, reservation in world.open:
                reservation.release()
            world.open = []
            await world.check()
            world.journal.close()

    asyncio.run(run())


@settings(max_examples=100)
@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 80)), min_size=1, max_size=60),
)
def test_a_bucket_never_gives_more_than_its_formula(
    limit: int, history: list[tuple[float, int]]
) -> None:
    """In any window of t seconds at most limit * (1 + t / 60), beside what one request is larger than the bucket."""
    counters, now = Counters(), 100.0
    taken: list[tuple[float, int]] = []
    for number, (passed, amount) in enumerate(history):
        now += passed
        hold = Hold(str(number), (Meter("m", MeterKind.TOKENS, limit, amount, "x"),), 0.0)
        refusal = counters.take(hold, monotonic=now, wall=0.0)
        if refusal is None:
            taken.append((now, amount))
            counters.settle(hold.id, Actual(tokens=amount), monotonic=now)
        else:
            assert refusal.retry_after is not None
            then = Hold("then", hold.meters, 0.0)
            later = now + refusal.retry_after
            assert counters.take(then, monotonic=later, wall=0.0) is None
            counters.release("then", monotonic=later)
            now = later
    largest = max((amount for _, amount in taken), default=0)
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            total = sum(amount for _, amount in taken[start : end + 1])
            seconds = taken[end][0] - taken[start][0]
            assert total <= limit * (1 + seconds / 60.0) + max(0, largest - limit) + 1e-3
