"""Limits and money in a real Redis: as exact as in one process, and over several gateways."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.accounts_of import accounts_config, scope_with
from tests.support.patience import PATIENCE
from tests.support.redis_gateway import TOTAL, Gateway

from headrace.config.secret import Secret
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    AuthenticationError,
    BadRequestError,
    BudgetExceededError,
    ConfigError,
    RateLimitError,
)
from headrace.fleet.gateway.accounts.account import NewKey
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.accounts.redis_store import RedisStore
from headrace.observe.metrics import Metrics


async def test_200_requests_of_two_gateways_on_a_budget_for_50(redis_url) -> None:
    async with (
        Gateway(redis_url, "race", limits=TOTAL) as one,
        Gateway(redis_url, "race", limits=TOTAL) as two,
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
from headrace.fleet.gateway.accounts.money import nano
from tests.support.redis_gateway import TOTAL, Gateway

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


def test_two_processes_share_a_budget_exactly(redis_url) -> None:
    root = Path(__file__).parents[3]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, redis_url],
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
        async with Gateway(redis_url, "processes", limits=TOTAL) as gateway:
            return await gateway.money()

    assert asyncio.run(money()) == (50.0, 0.0)


async def test_every_kind_of_limit_and_its_settlement(redis_url) -> None:
    limits = {"requests_per_minute": 3, "tokens_per_minute": 6000, "concurrency": 2}
    async with Gateway(redis_url, "kinds", limits=limits) as gateway:
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


async def test_a_day_s_money_and_large_sums_are_exact(redis_url) -> None:
    limits = {"budgets": [{"amount": 8_000_000.0, "per": "day"}]}
    async with Gateway(redis_url, "large", limits=limits) as gateway:
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


async def test_created_keys_are_known_to_all_gateways(redis_url) -> None:
    async with Gateway(redis_url, "keys") as one, Gateway(redis_url, "keys") as two:
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


async def test_two_gateways_that_make_the_same_key_make_one(redis_url) -> None:
    async with Gateway(redis_url, "twins") as one, Gateway(redis_url, "twins") as two:
        made = await asyncio.gather(
            *(each.accounts.create_key(NewKey(name="new")) for each in (one, two)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, BadRequestError) for each in made) == 1


async def test_a_key_in_redis_that_cannot_be_read_does_not_hide_others(redis_url) -> None:
    async with Gateway(redis_url, "garbage") as one, Gateway(redis_url, "garbage") as two:
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
