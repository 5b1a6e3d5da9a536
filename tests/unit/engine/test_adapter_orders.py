"""Adapters that are loaded while an engine process runs, and what its successor is given back."""

import asyncio

import pytest
from tests.support.running_engine import Running, of, request, until

from headrace.core.errors import (
    BadRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from headrace.core.model_info import AdapterInfo
from headrace.core.stats import ReplicaState
from headrace.engine import adapter_orders
from headrace.engine.adapter_orders import AdapterOrders
from headrace.engine.messages import AdapterAnswer


@pytest.fixture
def folders(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path


def names(client):
    return [adapter.name for adapter in client.info.adapters]


async def test_a_name_is_known_when_it_is_served_and_gone_when_it_is_not(folders):
    async with Running() as client:
        await client.load_adapter("a", str(folders / "one"))
        assert client.info.adapters == (AdapterInfo("a", str(folders / "one"), "one"),)
        with pytest.raises(BadRequestError, match="loaded already") as caught:
            await client.load_adapter("a", str(folders / "two"))
        assert caught.value.param == "lora_path"
        await client.load_adapter("a", str(folders / "two"), in_place=True)
        assert [a.digest for a in client.info.adapters] == ["two"]
        with pytest.raises(BadRequestError, match="no LoRA adapter"):
            await client.load_adapter("b", str(folders / "none"))
        with pytest.raises(NotFoundError):
            await client.unload_adapter("b")
        await client.unload_adapter("a")
        assert names(client) == []


async def test_a_restarted_engine_has_what_its_predecessor_had(folders):
    async with Running() as client:
        await client.load_adapter("a", str(folders / "one"))
        await client.load_adapter("b", str(folders / "two"))
        await client.load_adapter("gone", str(folders / "two"))
        await client.unload_adapter("gone")
        dying = asyncio.create_task(client.load_adapter("c", str(folders / "die")))
        with pytest.raises(UnavailableError):
            await dying
        await until(lambda: client.num_restarts == 1 and client.state is ReplicaState.READY)
        assert names(client) == ["a", "b"]
        (folders / "two").rmdir()
        client._supervisor.process.kill()
        await until(lambda: client.num_restarts == 2 and client.state is ReplicaState.READY)
        assert names(client) == ["a"]  # what cannot be read again is missed, and nothing else
        stream = client.submit(request(max_tokens=2))
        assert await stream.next_batch()


async def test_adapters_stay_with_their_model(folders):
    async with Running() as client:
        await client.load_adapter("a", str(folders / "one"))
        await client.park()
        assert client.state is ReplicaState.PARKED
        with pytest.raises(UnavailableError):
            await client.load_adapter("b", str(folders / "two"))
        await client.resume()
        assert names(client) == ["a"], "they are kept with the weights"
        config = of("fake?tokens=9")
        await client.load(config)
        assert names(client) == [], "another model has none of them"
        await client.load_adapter("a", str(folders / "one"))
        await client.unload()
        await client.load(config)
        assert names(client) == ["a"], "the same model has them again"


class Engine:
    """Takes orders and answers when it is told to."""

    def __init__(self):
        self.orders = []
        self.is_done = False
        self.client = AdapterOrders(self.orders.append)

    def restore(self, *loaded):
        def done():
            self.is_done = True

        self.client.restore(loaded, done)

    def answer(self, *adapters, error=None, place=-1):
        job = self.orders[place].job
        kind = "OverloadedError" if error else ""
        self.client.take(
            AdapterAnswer(
                job=job, adapters=None if error else adapters, error=error, error_kind=kind
            )
        )


async def test_what_was_loaded_at_start_and_changed_later_is_changed_again():
    engine = Engine()
    start = AdapterInfo("start", "/s", "s"), AdapterInfo("other", "/o", "o")
    engine.restore(*start)
    assert (engine.is_done, engine.orders) == (True, [])
    task = asyncio.create_task(engine.client.unload("start"))
    await asyncio.sleep(0)
    engine.answer(start[1])
    await task
    task = asyncio.create_task(engine.client.load("other", "/new", in_place=True))
    await asyncio.sleep(0)
    engine.answer(AdapterInfo("other", "/new", "n"))
    await task
    engine.orders.clear()
    engine.is_done = False
    engine.restore(*start)
    assert [(o.name, o.path, o.in_place) for o in engine.orders] == [
        ("start", None, False),
        ("other", "/new", True),
    ]
    engine.answer(start[1], place=0)
    assert not engine.is_done
    engine.answer(error="full")
    assert engine.is_done


async def test_orders_are_bounded_in_number_and_time(monkeypatch):
    engine = Engine()
    tasks = [
        asyncio.create_task(engine.client.unload(str(i))) for i in range(adapter_orders.MAX_ORDERS)
    ]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await engine.client.unload("more")
    engine.client.fail("gone")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {UnavailableError}
    monkeypatch.setattr(adapter_orders, "ORDER_SECONDS", 0.01)
    with pytest.raises(adapter_orders.DeadlineExceededError):
        await engine.client.load("a", "/a", in_place=False)
    engine.answer(AdapterInfo("a", "/a", "a"))  # too late, and yet it is served
    monkeypatch.setattr(adapter_orders, "RESTORE_SECONDS", 0.01)
    engine.restore()
    assert [order.name for order in engine.orders[-1:]] == ["a"]
    await until(lambda: engine.is_done)
