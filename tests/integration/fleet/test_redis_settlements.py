"""Settlements in a real Redis: late, lost, rejected, given up, and never twice."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from tests.support.in_process_gateway import until
from tests.support.patience import PATIENCE
from tests.support.redis_gateway import TOTAL, Gateway
from tests.support.redis_server import redis_server

from headrace.core.errors import (
    UnavailableError,
)
from headrace.fleet.gateway.accounts import redis_store
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.accounts.reservation import Reservation
from headrace.observe.catalogue import ACCOUNT_LOST, ACCOUNT_STORE_FAILURES


async def until_given_up(gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE):
        await gateway.store.tidy()
        while not gateway.metrics.value(ACCOUNT_LOST, ()):
            await asyncio.sleep(0.02)
            await gateway.store.tidy()


@pytest.mark.parametrize(("charge_lost", "spent"), [(True, 3.0), (False, 0.0)])
async def test_what_a_dead_gateway_held_is_settled_by_another(
    redis_url, charge_lost, spent
) -> None:
    prefix, limits = f"dead-{spent:.0f}", {**TOTAL, "concurrency": 1}
    dead = Gateway(redis_url, prefix, limits=limits, lease=0.2)
    await dead.store.start()
    await dead.reserve(3.0)
    await dead.die()
    async with Gateway(redis_url, prefix, limits=limits, charge_lost=charge_lost) as other:
        await until_given_up(other)
        assert await other.money() == (spent, 0.0)
        (await other.reserve(1.0)).release()


async def test_a_gateway_that_lives_keeps_what_it_holds(redis_url) -> None:
    async with Gateway(redis_url, "alive", limits=TOTAL, lease=4.0) as gateway:
        held = await gateway.reserve(3.0)
        await asyncio.sleep(5.0)
        await gateway.store.tidy()
        assert await gateway.money() == (0.0, 3.0)
        held.settle(tokens=1, cost=nano(2.0))
        assert await gateway.money() == (2.0, 0.0)


async def test_a_settlement_that_comes_late_corrects_what_was_charged(redis_url) -> None:
    slow = Gateway(redis_url, "late", limits=TOTAL, lease=0.1)  # not started: it renews nothing
    held = await slow.reserve(3.0)
    async with Gateway(redis_url, "late", limits=TOTAL) as other:
        await until_given_up(other)
        assert await other.money() == (3.0, 0.0)
        held.settle(tokens=1, cost=nano(1.25))
        await slow.accounts.close()
        assert await other.money() == (1.25, 0.0)


async def test_a_caller_that_is_cancelled_leaves_nothing_set_aside(redis_url) -> None:
    async with Gateway(redis_url, "left", limits={**TOTAL, "concurrency": 5}) as gateway:
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


async def test_what_was_given_back_before_it_was_taken_is_not_taken(redis_url) -> None:
    async with Gateway(redis_url, "void", limits=TOTAL) as gateway:
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
            gateway = Gateway(url, "back", limits=TOTAL, timeout=PATIENCE)
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


async def test_a_meter_that_someone_overwrote_keeps_nothing_else_from_being_settled(
    redis_url,
) -> None:
    """What comes through of a settlement comes through once: places are not given back again and again."""
    limits = {**TOTAL, "concurrency": 2}
    async with Gateway(redis_url, "broken", limits=limits) as gateway:
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


async def test_what_dead_gateways_held_is_given_up_past_what_cannot_be_read(redis_url) -> None:
    dead = Gateway(redis_url, "rubble", limits={**TOTAL, "concurrency": 3}, lease=0.1)
    redis, tag = dead.store._redis, dead.store._tag
    held = [await dead.reserve(1.0) for _ in range(2)]
    await redis.hset(f"{tag}holds", held[0]._hold.id, "garbage")
    await redis.set(f"{tag}m:k/a/total", "what is this")
    async with Gateway(redis_url, "rubble", limits=TOTAL) as other:
        async with asyncio.timeout(PATIENCE):
            await other.store.tidy()
            while await redis.exists(f"{tag}holds", f"{tag}leases"):
                await asyncio.sleep(0.02)
                await other.store.tidy()
        assert other.metrics.value(ACCOUNT_LOST, ()) == 2
        assert await redis.get(f"{tag}m:k/a/places") == b"1"  # that of the record that was garbage
    await dead.die()


async def test_a_settlement_that_redis_rejects_does_not_hold_up_those_behind_it(
    redis_url, monkeypatch
) -> None:
    monkeypatch.setattr(redis_store, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(redis_store, "MAX_REJECTIONS", 3)
    async with Gateway(redis_url, "rejected", limits=TOTAL) as gateway:
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
    redis_url, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(redis_store, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(redis_store, "MAX_REJECTIONS", 2)
    monkeypatch.setattr(redis_store, "GROUP", 7)
    async with Gateway(redis_url, "many", limits=TOTAL) as gateway:
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


async def test_a_late_correction_that_fails_is_counted(redis_url) -> None:
    async with Gateway(redis_url, "correction", limits=TOTAL) as gateway:
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


async def test_a_gateway_that_closes_drops_no_settlement(redis_url) -> None:
    limits = {"budgets": [{"amount": 5000.0, "per": "total"}]}
    async with Gateway(redis_url, "closing", limits=limits) as one:
        held = [await one.reserve(1.0) for _ in range(450)]
        for each in held:
            each.settle(tokens=1, cost=nano(1.0))
        await asyncio.sleep(0)  # the settling has begun, and is not over
        assert one.store.backlog
    async with Gateway(redis_url, "closing", limits=limits) as two:
        assert await two.money() == (450.0, 0.0)
