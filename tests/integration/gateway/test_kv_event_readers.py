"""The reader of KV events against real sockets: order, loss, replay, restart, garbage."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from tests.support.patience import PATIENCE

from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.clock import SystemClock
from headrace.engine.kv_events import ZmqPublisher
from headrace.engine.memory.events import BlockStored
from headrace.engine.messages import KVEventsConfig
from headrace.fleet.gateway.prefix import events
from headrace.fleet.gateway.prefix.events import EventReader, EventReaders
from headrace.fleet.gateway.prefix.exact import ExactIndex
from headrace.fleet.gateway.prefix.token_chain import TokenPrompt, ids

LAST = 99
"""A block that no test has."""


@pytest.fixture(autouse=True)
def _patience_with_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_REPLAY_PATIENCE", PATIENCE)


def stored(block: int, parent: int | None = None) -> list[Any]:
    return ["BlockStored", [block], parent, [block, block], 2]


def payload(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


class Publisher:
    """vLLM's side, by hand: every message may be lost, every number may be wrong."""

    def __init__(self, folder: Path, *, has_replay: bool) -> None:
        self.context = zmq.asyncio.Context()
        self.kept: dict[int, bytes] = {}
        self.spec = ReplicaSpec(
            url="http://r:1",
            id="r",
            kv_events=f"ipc://{folder}/events",
            kv_events_replay=f"ipc://{folder}/replay" if has_replay else None,
        )
        self.pub = self.context.socket(zmq.PUB)
        self.pub.bind(self.spec.kv_events)
        self.tasks: list[asyncio.Task[None]] = []
        if has_replay:
            self.router = self.context.socket(zmq.ROUTER)
            self.router.bind(self.spec.kv_events_replay)
            self.tasks.append(asyncio.create_task(self._serve()))

    async def _serve(self) -> None:
        while True:
            peer, _, start = await self.router.recv_multipart()
            for number in sorted(self.kept):
                if number >= int.from_bytes(start, "big"):
                    await self.router.send_multipart(
                        [peer, b"", number.to_bytes(8, "big"), self.kept[number]]
                    )
            end = (-1).to_bytes(8, "big", signed=True)
            await self.router.send_multipart([peer, b"", end, b""])

    async def send(
        self, number: int, *events: Any, is_lost: bool = False, keeps: bool = True
    ) -> None:
        data = payload(*events)
        if keeps:
            self.kept[number] = data
        if not is_lost:
            await self.pub.send_multipart([b"", number.to_bytes(8, "big"), data])

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.context.destroy(linger=0)


class Reading:
    """A publisher, and the index that hears of it."""

    def __init__(self, publisher: Publisher, index: ExactIndex, readers: EventReaders) -> None:
        self.publisher = publisher
        self.index = index
        self.readers = readers

    @property
    def reader(self) -> EventReader:
        return self.readers.readers()["r"]

    def cached(self, *blocks: int) -> int:
        return self.index.cached("r", TokenPrompt(ids([b for b in blocks for _ in range(2)])), "m")

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():  # noqa: ASYNC110 - the index tells nobody
                await asyncio.sleep(0.005)

    async def connect(self) -> None:
        """PUB drops what is sent before the subscription has come: number 0 until it is heard, and a last one."""
        while not self.reader.num_messages:
            await self.publisher.send(0, ["AllBlocksCleared"])
            await asyncio.sleep(0.01)
        await self.publisher.send(0, stored(LAST))
        await self.until(lambda: self.cached(LAST) == 2)
        await self.publisher.send(0, ["AllBlocksCleared"])
        await self.until(lambda: self.cached(LAST) == 0)
        self.reader.num_restarts = 0


@asynccontextmanager
async def reading(folder: Path, *, has_replay: bool = False) -> AsyncIterator[Reading]:
    publisher = Publisher(folder, has_replay=has_replay)
    index = ExactIndex(100)
    watched: set[str] = set()
    readers = EventReaders(index, watched.add, watched.discard)
    readers.sync([publisher.spec])
    assert watched == {"r"}
    try:
        found = Reading(publisher, index, readers)
        await found.connect()
        yield found
    finally:
        await readers.close()
        publisher.close()
    assert not watched


async def test_events_reach_the_index(tmp_path: Path) -> None:
    async with reading(tmp_path) as it:
        await it.publisher.send(1, stored(5), stored(6, 5))
        await it.publisher.send(2, ["BlockRemoved", [6]])
        await it.until(lambda: it.cached(5, 6) == 2)
        assert it.reader.num_lost == 0


async def test_a_gap_without_a_replay_forgets_what_was_before(tmp_path: Path) -> None:
    async with reading(tmp_path) as it:
        await it.publisher.send(1, stored(5))
        await it.publisher.send(2, ["BlockRemoved", [5]], is_lost=True)
        await it.publisher.send(3, stored(7))
        await it.until(lambda: it.cached(7) == 2)
        assert it.cached(5) == 0
        assert it.reader.num_lost == 1


async def test_a_gap_is_closed_by_a_replay(tmp_path: Path) -> None:
    async with reading(tmp_path, has_replay=True) as it:
        await it.publisher.send(1, stored(5))
        await it.publisher.send(2, stored(6, 5), is_lost=True)
        await it.publisher.send(3, stored(7, 6), is_lost=True)
        await it.publisher.send(4, stored(8, 7))
        await it.until(lambda: it.cached(5, 6, 7, 8) == 8)
        assert it.reader.num_lost == 0


async def test_a_replay_with_a_hole_forgets_what_was_before_the_hole(tmp_path: Path) -> None:
    async with reading(tmp_path, has_replay=True) as it:
        await it.publisher.send(1, stored(5))
        await it.publisher.send(2, stored(6), is_lost=True, keeps=False)
        await it.publisher.send(3, stored(7), is_lost=True)
        await it.publisher.send(4, stored(8))
        await it.until(lambda: it.cached(8) == 2)
        assert (it.cached(5), it.cached(7)) == (0, 2)
        assert it.reader.num_lost == 1


async def test_a_restart_forgets_everything(tmp_path: Path) -> None:
    async with reading(tmp_path) as it:
        await it.publisher.send(1, stored(5))
        await it.publisher.send(2, stored(6))
        await it.until(lambda: it.cached(6) == 2)
        await it.publisher.send(0, stored(7))
        await it.until(lambda: it.cached(7) == 2)
        assert (it.cached(5), it.cached(6)) == (0, 0)
        assert it.reader.num_restarts == 1


async def test_a_successor_that_is_past_what_was_heard_is_told_from_its_predecessor(
    tmp_path: Path,
) -> None:
    async with reading(tmp_path, has_replay=True) as it:
        await it.publisher.send(1, stored(5))
        await it.until(lambda: it.cached(5) == 2)
        # It starts anew, and is heard again only when it has come further than the one before.
        await it.publisher.send(0, stored(20), is_lost=True)
        await it.publisher.send(1, stored(21), is_lost=True)
        await it.publisher.send(2, stored(22), is_lost=True)
        await it.publisher.send(3, stored(23))
        await it.until(lambda: it.cached(23) == 2)
        assert (it.cached(5), it.cached(20), it.cached(21), it.cached(22)) == (0, 2, 2, 2)
        assert (it.reader.num_restarts, it.reader.num_lost) == (1, 0)


async def test_what_was_told_is_forgotten_where_nobody_can_say_who_goes_on(tmp_path: Path) -> None:
    async with reading(tmp_path, has_replay=True) as it:
        await it.publisher.send(1, stored(5), keeps=False)
        await it.publisher.send(2, stored(6), is_lost=True)
        await it.publisher.send(3, stored(7))
        await it.until(lambda: it.cached(7) == 2)
        assert (it.cached(5), it.cached(6)) == (0, 2)


async def test_a_replay_that_does_not_answer_is_not_waited_for_each_time(tmp_path: Path) -> None:
    async with reading(tmp_path, has_replay=True) as it:
        it.publisher.tasks[0].cancel()
        asked = 0
        poll = zmq.asyncio.Socket.poll

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal asked
            asked += 1
            return poll(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(zmq.asyncio.Socket, "poll", counted)
            patch.setattr(events, "_REPLAY_PATIENCE", 0.5)
            for number in range(2, 22, 2):
                await it.publisher.send(number, stored(number))
            await it.until(lambda: it.cached(20) == 2)
        assert asked == 1
        assert it.cached(18) == 0


async def test_garbage_ends_nothing(tmp_path: Path) -> None:
    async with reading(tmp_path) as it:
        await it.publisher.send(1, stored(5))
        for frames in ([b""], [b"x", b"short", b"y"], [b"", b"\xff" * 8, b"z"], [b""] * 9):
            await it.publisher.pub.send_multipart(frames)
        await it.publisher.pub.send_multipart([b"", (2).to_bytes(8, "big"), b"\xc1garbage"])
        await it.publisher.send(3, stored(6))
        await it.until(lambda: it.cached(6) == 2)
        # The garbage may have told that 5 was removed.
        assert it.cached(5) == 0
        assert it.reader.num_malformed == 5


async def test_an_address_that_is_none_does_not_end_the_gateway(tmp_path: Path) -> None:
    readers = EventReaders(ExactIndex(10), lambda _: None, lambda _: None)
    readers.sync([ReplicaSpec(url="http://r:1", id="r", kv_events="nonsense")])
    await asyncio.sleep(0.05)
    assert set(readers.readers()) == {"r"}
    readers.sync([])
    assert not readers.readers()
    await readers.close()


async def test_only_a_changed_address_is_read_anew(tmp_path: Path) -> None:
    watched: list[str] = []
    readers = EventReaders(ExactIndex(10), watched.append, lambda _: None)
    spec = ReplicaSpec(url="http://r:1", id="r", kv_events=f"ipc://{tmp_path}/a")
    silent = ReplicaSpec(url="http://s:1", id="s")
    readers.sync([spec, silent])
    readers.sync([spec, silent])
    assert watched == ["r"]
    readers.sync([ReplicaSpec(url="http://r:1", id="r", kv_events=f"ipc://{tmp_path}/b")])
    assert watched == ["r", "r"]
    await readers.close()


async def test_what_headrace_publishes_is_read(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    publisher = ZmqPublisher(KVEventsConfig(endpoint=endpoint), SystemClock())
    index = ExactIndex(100)
    readers = EventReaders(index, lambda _: None, lambda _: None)
    readers.sync([ReplicaSpec(url="http://r:1", id="r", kv_events=endpoint)])
    event = BlockStored([b"\7" * 32], None, [1, 2, 3, 4], 4, extra_keys=[["tenant"]])
    try:
        async with asyncio.timeout(PATIENCE):
            while index.cached("r", TokenPrompt(ids([1, 2, 3, 4, 5]), salt="tenant"), "m") != 4:
                publisher.publish([event])
                await asyncio.sleep(0.01)
        assert index.cached("r", TokenPrompt(ids([1, 2, 3, 4, 5])), "m") == 0
    finally:
        await readers.close()
        publisher.close()
