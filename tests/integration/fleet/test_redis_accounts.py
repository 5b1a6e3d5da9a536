"""Limits and money in a real Redis: as exact as in one process, and over several gateways."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.accounts_of import account_of, accounts_config, accounts_over, key, scope_with
from tests.support.in_process_gateway import until
from tests.support.patience import PATIENCE
from tests.support.redis_server import redis_server

from headrace.config.secret import Secret
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    AuthenticationError,
    BadRequestError,
    BudgetExceededError,
    ConfigError,
    RateLimitError,
    UnavailableError,
)
from headrace.fleet.gateway.accounts import redis_store
from headrace.fleet.gateway.accounts.account import NewKey
from headrace.fleet.gateway.accounts.accounts import Accounts
from headrace.fleet.gateway.accounts.meters import Estimate
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.accounts.redis_store import RedisStore
from headrace.fleet.gateway.accounts.reservation import Reservation
from headrace.observe.catalogue import ACCOUNT_LOST, ACCOUNT_STORE_FAILURES
from headrace.observe.metrics import Metrics


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="hr-") as directory,
        redis_server(Path(directory)) as url,
    ):
        yield url


class Gateway:
    """One gateway's accounts."""

    def __init__(self, url: str, prefix: str, *, limits=None, charge_lost=True, **redis) -> None:
        tables = {"redis": {"url": url, "prefix": prefix, "timeout": 10.0, **redis}}
        self.metrics = Metrics()
        config = accounts_config(**tables).redis
        assert config is not None
        clock = SystemClock()
        self.store = RedisStore(config, clock, self.metrics, charge_lost=charge_lost)
        self.accounts: Accounts = accounts_over(
            self.store, clock, keys=[key("a", limits=limits or {})], **tables
        )
        self.account = account_of(self.accounts, "a")

    async def __aenter__(self) -> "Gateway":
        await self.store.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.accounts.close()

    async def reserve(self, cost: float = 0.0, tokens: int = 0):
        return await self.accounts.reserve(
            self.account, Estimate(prompt_tokens=tokens, cost=nano(cost))
        )

    async def settled(self) -> None:
        for _ in range(2000):
            if not self.store.backlog:
                return
            await asyncio.sleep(0.01)
        pytest.fail("settlements do not reach Redis")

    async def money(self) -> tuple[float, float]:
        await self.settled()
        (found,) = await self.accounts.budgets(self.account)
        return found.spent, found.set_aside

    async def die(self) -> None:
        """As kill -9 would end it: nothing is settled or renewed any more."""
        for task in self.store._tasks:
            task.cancel()
        await asyncio.gather(*self.store._tasks, return_exceptions=True)
        self.store._pending.clear()
        await self.store._redis.aclose()


TOTAL = {"budgets": [{"amount": 50.0, "per": "total"}]}


async def test_200_requests_of_two_gateways_on_a_budget_for_50(server) -> None:
    async with (
        Gateway(server, "race", limits=TOTAL) as one,
        Gateway(server, "race", limits=TOTAL) as two,
    ):
        asked = [gateway.reserve(1.0) for _ in range(100) for gateway in (one, two)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        admitted = [each for each in results if not isinstance(each, Exception)]
        assert len(admitted) == 50
        assert all(
            isinstance(each, BudgetExceededError) for each in results if each not in admitted
        )
        for each in admitted:
            each.settle(tokens=1, cost=nano(1.0))
            each.release()
        await one.settled()
        assert await two.money() == (50.0, 0.0)


RACER = """
import asyncio, sys
from headrace.core.errors import BudgetExceededError
from tests.integration.fleet.test_redis_accounts import Gateway, TOTAL, nano

async def main():
    async with Gateway(sys.argv[1], "processes", limits=TOTAL) as gateway:
        sys.stdin.readline()
        results = await asyncio.gather(*(gateway.reserve(1.0) for _ in range(100)), return_exceptions=True)
        admitted = [each for each in results if not isinstance(each, BudgetExceededError)]
        for each in admitted:
            each.settle(tokens=1, cost=nano(1.0))
        await gateway.settled()
        print(len(admitted))

asyncio.run(main())
"""


def test_two_processes_share_a_budget_exactly(server) -> None:
    root = Path(__file__).parents[3]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, server],
            cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    counts = [int(racer.communicate(timeout=PATIENCE)[0]) for racer in racers]
    assert sum(counts) == 50

    async def money() -> tuple[float, float]:
        async with Gateway(server, "processes", limits=TOTAL) as gateway:
            return await gateway.money()

    assert asyncio.run(money()) == (50.0, 0.0)


async def test_every_kind_of_limit_and_its_settlement(server) -> None:
    limits = {"requests_per_minute": 3, "tokens_per_minute": 6000, "concurrency": 2}
    async with Gateway(server, "kinds", limits=limits) as gateway:
        first = await gateway.reserve(tokens=4000)
        with pytest.raises(RateLimitError, match="6000 tokens a minute") as caught:
            await gateway.reserve(tokens=3000)
        assert 1.0 <= caught.value.retry_after <= 10.0
        first.settle(tokens=1000, cost=0)
        await gateway.settled()
        second = await gateway.reserve(tokens=3000)
        third = await gateway.reserve()
        with pytest.raises(RateLimitError, match="2 requests at once"):
            await gateway.reserve()
        third.release()  # its place in the minute comes back
        await gateway.settled()
        third = await gateway.reserve()
        second.settle(tokens=3000, cost=0)
        await gateway.settled()
        with pytest.raises(RateLimitError, match="3 requests a minute"):
            await gateway.reserve()
        third.release()


async def test_a_day_s_money_and_large_sums_are_exact(server) -> None:
    limits = {"budgets": [{"amount": 8_000_000.0, "per": "day"}]}
    async with Gateway(server, "large", limits=limits) as gateway:
        held = await gateway.reserve(7_999_999.999_999_998)
        await gateway.reserve(0.000_000_002)
        with pytest.raises(BudgetExceededError) as caught:
            await gateway.reserve(0.000_000_001)
        assert caught.value.retry_after == 1.0
        held.settle(tokens=1, cost=nano(7_999_999.999_999_998))
        await gateway.settled()
        with pytest.raises(BudgetExceededError) as caught:
            await gateway.reserve(0.000_000_003)
        assert caught.value.retry_after is not None
        assert 1.0 <= caught.value.retry_after <= 86_400.0


async def until_given_up(gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE):
        await gateway.store.tidy()
        while not gateway.metrics.value(ACCOUNT_LOST, ()):
            await asyncio.sleep(0.02)
            await gateway.store.tidy()


@pytest.mark.parametrize(("charge_lost", "spent"), [(True, 3.0), (False, 0.0)])
async def test_what_a_dead_gateway_held_is_settled_by_another(server, charge_lost, spent) -> None:
    prefix, limits = f"dead-{spent:.0f}", {**TOTAL, "concurrency": 1}
    dead = Gateway(server, prefix, limits=limits, lease=0.2)
    await dead.store.start()
    await dead.reserve(3.0)
    await dead.die()
    async with Gateway(server, prefix, limits=limits, charge_lost=charge_lost) as other:
        await until_given_up(other)
        assert await other.money() == (spent, 0.0)
        (await other.reserve(1.0)).release()


async def test_a_gateway_that_lives_keeps_what_it_holds(server) -> None:
    async with Gateway(server, "alive", limits=TOTAL, lease=1.5) as gateway:
        held = await gateway.reserve(3.0)
        await asyncio.sleep(2.0)
        await gateway.store.tidy()
        assert await gateway.money() == (0.0, 3.0)
        held.settle(tokens=1, cost=nano(2.0))
        assert await gateway.money() == (2.0, 0.0)


async def test_a_settlement_that_comes_late_corrects_what_was_charged(server) -> None:
    slow = Gateway(server, "late", limits=TOTAL, lease=0.1)  # not started: it renews nothing
    held = await slow.reserve(3.0)
    async with Gateway(server, "late", limits=TOTAL) as other:
        await until_given_up(other)
        assert await other.money() == (3.0, 0.0)
        held.settle(tokens=1, cost=nano(1.25))
        await slow.accounts.close()
        assert await other.money() == (1.25, 0.0)


async def test_a_caller_that_is_cancelled_leaves_nothing_set_aside(server) -> None:
    async with Gateway(server, "left", limits={**TOTAL, "concurrency": 5}) as gateway:
        for turns in range(8):
            task = asyncio.create_task(gateway.reserve(1.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(found, Reservation):  # it was too late to cancel
                found.release()
        await asyncio.gather(*gateway.store._abandoned, return_exceptions=True)
        assert await gateway.money() == (0.0, 0.0)
        assert gateway.store.num_holds == 0
        for held in [await gateway.reserve(1.0) for _ in range(5)]:
            held.release()


async def test_what_was_given_back_before_it_was_taken_is_not_taken(server) -> None:
    async with Gateway(server, "void", limits=TOTAL) as gateway:
        redis, tag = gateway.store._redis, gateway.store._tag
        await redis.set(f"{tag}void:{gateway.accounts._origin}-1", "1", ex=300)
        (await gateway.reserve(1.0)).release()
        assert await gateway.money() == (0.0, 0.0)


async def test_a_redis_that_cannot_be_reached_refuses_or_lets_in_as_configured(tmp_path) -> None:
    url = f"unix://{tmp_path}/nothing"
    async with Gateway(url, "x", limits=TOTAL, timeout=0.1) as gateway:
        with pytest.raises(UnavailableError):
            await gateway.reserve(1.0)
        assert gateway.metrics.value(ACCOUNT_STORE_FAILURES, ()) >= 1
        gateway.store._pending.clear()
    async with Gateway(url, "x", limits=TOTAL, timeout=0.1, fail_open=True) as gateway:
        (await gateway.reserve(1.0)).settle(tokens=1, cost=1)
        gateway.store._pending.clear()


async def test_settlements_wait_for_redis_to_come_back() -> None:
    with tempfile.TemporaryDirectory(prefix="hr-") as directory:
        path = Path(directory)
        with redis_server(path) as url:
            gateway = Gateway(url, "back", limits=TOTAL, timeout=5.0)
            await gateway.store.start()
            held = await gateway.reserve(3.0)
            redis = gateway.store._redis
            dump = await redis.hgetall(f"{gateway.store._tag}holds")
        held.settle(tokens=1, cost=nano(2.0))
        await asyncio.sleep(0.1)
        assert gateway.store.backlog == 1
        (path / "redis.sock").unlink(missing_ok=True)
        with redis_server(path):
            # It lost everything but what we put back; the settlement finds its hold.
            for name, record in dump.items():
                await redis.hset(f"{gateway.store._tag}holds", name, record)
            await gateway.settled()
            assert (await gateway.money())[0] == 2.0
            await gateway.accounts.close()


async def test_a_meter_that_someone_overwrote_keeps_nothing_else_from_being_settled(server) -> None:
    """What comes through of a settlement comes through once: places are not given back again and again."""
    limits = {**TOTAL, "concurrency": 2}
    async with Gateway(server, "broken", limits=limits) as gateway:
        redis, tag = gateway.store._redis, gateway.store._tag
        first, second = [await gateway.reserve(1.0) for _ in range(2)]
        await redis.set(f"{tag}m:k/a/total", "what is this")
        first.settle(tokens=1, cost=nano(1.0))
        await gateway.settled()
        assert gateway.metrics.value(ACCOUNT_STORE_FAILURES, ()) == 1
        assert await redis.get(f"{tag}m:k/a/places") == b"1"
        assert await redis.hlen(f"{tag}holds") == 1
        await redis.delete(f"{tag}m:k/a/total")
        second.settle(tokens=1, cost=nano(2.0))
        assert (await gateway.money())[0] == 2.0
        assert not await redis.exists(f"{tag}m:k/a/places", f"{tag}holds", f"{tag}leases")


async def test_what_dead_gateways_held_is_given_up_past_what_cannot_be_read(server) -> None:
    dead = Gateway(server, "rubble", limits={**TOTAL, "concurrency": 3}, lease=0.1)
    redis, tag = dead.store._redis, dead.store._tag
    held = [await dead.reserve(1.0) for _ in range(2)]
    await redis.hset(f"{tag}holds", held[0]._hold.id, "garbage")
    await redis.set(f"{tag}m:k/a/total", "what is this")
    async with Gateway(server, "rubble", limits=TOTAL) as other:
        for _ in range(500):
            await other.store.tidy()
            if not await redis.exists(f"{tag}holds", f"{tag}leases"):
                break
            await asyncio.sleep(0.02)
        assert other.metrics.value(ACCOUNT_LOST, ()) == 2
        assert await redis.get(f"{tag}m:k/a/places") == b"1"  # that of the record that was garbage
    await dead.die()


async def test_a_settlement_that_redis_rejects_does_not_hold_up_those_behind_it(
    server, monkeypatch
) -> None:
    monkeypatch.setattr(redis_store, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(redis_store, "MAX_REJECTIONS", 3)
    async with Gateway(server, "rejected", limits=TOTAL) as gateway:
        redis, tag = gateway.store._redis, gateway.store._tag
        first, second = [await gateway.reserve(1.0) for _ in range(2)]
        await redis.hdel(f"{tag}holds", first._hold.id)
        await redis.lpush(f"{tag}lost:{first._hold.id}", "no text")
        first.settle(tokens=1, cost=nano(1.0))
        second.settle(tokens=1, cost=nano(2.0))
        assert (await gateway.money())[0] == 2.0
        # Tried again a few times, and then let go.
        assert gateway.metrics.value(ACCOUNT_STORE_FAILURES, ()) == 4


async def test_many_rejected_settlements_are_a_line_for_each_round(
    server, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(redis_store, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(redis_store, "MAX_REJECTIONS", 2)
    monkeypatch.setattr(redis_store, "GROUP", 7)
    async with Gateway(server, "many", limits=TOTAL) as gateway:
        redis, tag = gateway.store._redis, gateway.store._tag
        held = [await gateway.reserve(0.01) for _ in range(20)]
        for each in held:
            await redis.hdel(f"{tag}holds", each._hold.id)
            await redis.lpush(f"{tag}lost:{each._hold.id}", "no text")
        for each in held:
            each.settle(tokens=1, cost=1)
        await gateway.settled()
        assert gateway.metrics.value(ACCOUNT_STORE_FAILURES, ()) == 60
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "did not take 20 settlements" in line]) == 3
    assert [line for line in told if "given up" in line] == [
        "20 settlements are given up; their leases end."
    ]
    assert len(told) == 4


async def test_a_late_correction_that_fails_is_counted(server) -> None:
    async with Gateway(server, "late", limits=TOTAL) as gateway:
        redis, tag = gateway.store._redis, gateway.store._tag
        held = await gateway.reserve(1.0)
        await redis.hdel(f"{tag}holds", held._hold.id)
        await redis.set(f"{tag}lost:{held._hold.id}", json.dumps([[f"{tag}m:k/a/total", 5]]))
        await redis.set(f"{tag}m:k/a/total", "what is this")
        held.settle(tokens=1, cost=1)
        await gateway.settled()
        assert gateway.metrics.value(ACCOUNT_STORE_FAILURES, ()) == 1


async def test_settlements_wait_for_a_redis_that_takes_no_writes(monkeypatch) -> None:
    monkeypatch.setattr(redis_store, "RETRY_PERIOD", 0.01)
    with (
        tempfile.TemporaryDirectory(prefix="hr-") as directory,
        redis_server(Path(directory)) as url,
    ):
        async with Gateway(url, "replica", limits=TOTAL) as gateway:
            held = await gateway.reserve(3.0)
            await gateway.store._redis.execute_command("REPLICAOF", "127.0.0.1", "1")
            held.settle(tokens=1, cost=nano(2.0))
            await until(
                lambda: gateway.metrics.value(ACCOUNT_STORE_FAILURES, ()) >= 3, "it is rejected"
            )
            assert gateway.store.backlog == 1
            await gateway.store._redis.execute_command("REPLICAOF", "NO", "ONE")
            assert await gateway.money() == (2.0, 0.0)


async def test_created_keys_are_known_to_all_gateways(server) -> None:
    async with Gateway(server, "keys") as one, Gateway(server, "keys") as two:
        created = await one.accounts.create_key(NewKey(name="new", tenant="a"))
        scope = scope_with(authorization=f"Bearer {created.key}")
        with pytest.raises(AuthenticationError):
            two.accounts.authenticate(scope)
        await two.accounts.load()
        assert two.accounts.authenticate(scope).tenant == "a"
        with pytest.raises(BadRequestError):
            await two.accounts.create_key(NewKey(name="new"))
        await two.accounts.revoke_key("new")
        await one.accounts.load()
        with pytest.raises(AuthenticationError):
            one.accounts.authenticate(scope)


async def test_two_gateways_that_make_the_same_key_make_one(server) -> None:
    async with Gateway(server, "twins") as one, Gateway(server, "twins") as two:
        made = await asyncio.gather(
            *(each.accounts.create_key(NewKey(name="new")) for each in (one, two)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, BadRequestError) for each in made) == 1


async def test_a_key_in_redis_that_cannot_be_read_does_not_hide_others(server) -> None:
    async with Gateway(server, "garbage") as one, Gateway(server, "garbage") as two:
        await one.store._redis.hset(f"{one.store._tag}keys", "bad", b"\xff{")
        await one.accounts.create_key(NewKey(name="good"))
        await two.accounts.load()
        assert [info.name for info in two.accounts.list_keys()] == ["a", "good"]


@pytest.mark.parametrize(
    "url",
    [
        "http://somewhere",
        "redis://:sesame#1@host:1/0",
        "redis://u:sesame/1@host:1/0",
        "redis://host:sesame",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_quoted(url: str) -> None:
    config = accounts_config(redis={"url": Secret(url)}).redis
    assert config is not None
    with pytest.raises(ConfigError, match=r"accounts\.redis\.url") as caught:
        RedisStore(config, SystemClock(), Metrics(), charge_lost=True)
    assert "sesame" not in str(caught.value)


async def test_a_gateway_that_closes_drops_no_settlement(server) -> None:
    limits = {"budgets": [{"amount": 5000.0, "per": "total"}]}
    async with Gateway(server, "closing", limits=limits) as one:
        held = [await one.reserve(1.0) for _ in range(450)]
        for each in held:
            each.settle(tokens=1, cost=nano(1.0))
        await asyncio.sleep(0)  # the settling has begun, and is not over
        assert one.store.backlog
    async with Gateway(server, "closing", limits=limits) as two:
        assert await two.money() == (450.0, 0.0)
