"""Reads replicas' KV events from ZeroMQ into the exact index: one task a replica, that nothing it reads can end.

Messages are `[topic, number (8 bytes, big endian), batch]`. Lost ones are asked for again where the replica has a replay
endpoint (vLLM: a ROUTER that is sent the first number wanted, and ends with number -1); where not, all that the replica
told before is forgotten, and the index fills again as its cache turns over.

A publisher that started anew may be past the number that was heard last when it is heard again. So the replay begins with
that one, and only if it is what was heard do those behind it follow on what is known.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from hashlib import blake2b
from typing import Any, Final

import zmq
import zmq.asyncio

from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.clock import Clock, SystemClock
from headrace.fleet.gateway.prefix import sequence
from headrace.fleet.gateway.prefix.exact import ExactIndex
from headrace.fleet.gateway.prefix.kv_wire import MalformedError, decode_batch

#: Messages that wait while the gateway is busy; beyond it they are dropped, which their numbers show.
_HIGH_WATER_MARK: Final = 10_000
_MAX_MESSAGE: Final = 64 * 1024 * 1024
#: Seconds for one message of a replay, and before another try after an error of the socket.
_REPLAY_PATIENCE: Final = 1.0
_PAUSE: Final = 1.0
#: Seconds without a replay after one that brought nothing: waiting for each would put off all messages behind it.
_REPLAY_PAUSE: Final = 10.0
#: Seconds of silence after which TCP asks whether the other side is still there, and between its questions. It sends
#: nothing else, so one that lost its power would be listened to for ever.
_KEEPALIVE: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 20,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}

log = logging.getLogger("headrace.fleet")


class EventReader:
    """The events of one replica."""

    def __init__(
        self,
        replica_id: str,
        spec: ReplicaSpec,
        index: ExactIndex,
        context: zmq.asyncio.Context,
        clock: Clock,
    ) -> None:
        self.endpoints = (spec.kv_events, spec.kv_events_replay)
        self.num_messages = 0
        self.num_lost = 0
        """Messages that were lost and not had again."""
        self.num_malformed = 0
        self.num_restarts = 0
        self._id = replica_id
        self._index = index
        self._context = context
        self._clock = clock
        self._sequence = sequence.Sequence()
        self._heard = b""
        """Digest of the last message."""
        self._replay_from = 0.0
        """Time before which no replay is asked for."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._read()
            except zmq.ZMQError as error:
                log.warning("KV events of %s cannot be read: %s", self._id, error)
            await asyncio.sleep(_PAUSE)

    async def _read(self) -> None:
        socket = self._socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(str(self.endpoints[0]))
            while True:
                await self._take(await socket.recv_multipart())
                # A message that is there already is had without letting anybody else run.
                await asyncio.sleep(0)
        finally:
            socket.close(linger=0)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE)
        socket.setsockopt(zmq.IPV6, 1)  # and IPv4
        for option, value in _KEEPALIVE.items():
            socket.setsockopt(option, value)
        return socket

    async def _take(self, frames: Sequence[bytes]) -> None:
        number = _number(frames)
        if number is None:
            self._complain("a message without a number")
            return
        self.num_messages += 1
        first = self._sequence.last + 1
        if self._sequence.take(number) is sequence.Order.RESTART:
            self._begin_anew()
            first = 0
        if first < number:
            await self._catch_up(first, number)
        self._heard = _digest(frames[-1])
        self._apply(frames[-1])

    async def _catch_up(self, first: int, until: int) -> None:
        """Have messages [first, until) again, or forget what was told before them."""
        expected = first
        is_known = first == 0  # nothing that was told before is believed any more
        async with aclosing(self._replay(max(0, first - 1), until)) as replay:
            async for number, payload in replay:
                if not is_known and number == first - 1:
                    if _digest(payload) != self._heard:
                        break
                    is_known = True
                    continue
                if number != expected or not is_known:
                    self._lose(number - expected)
                    is_known = True
                self._apply(payload)
                expected = number + 1
                await asyncio.sleep(0)
            else:
                if expected < until:
                    self._lose(until - expected)
                return
        self._begin_anew()
        await self._catch_up(0, until)

    def _begin_anew(self) -> None:
        self.num_restarts += 1
        self._index.purge(self._id)
        log.info("Replica %s tells its KV events anew", self._id)

    async def _replay(self, first: int, until: int) -> AsyncGenerator[tuple[int, bytes], None]:
        if self.endpoints[1] is None or self._clock.monotonic() < self._replay_from:
            return
        socket = self._socket(zmq.DEALER)
        try:
            socket.connect(self.endpoints[1])
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            last = first - 1
            while last < until - 1:
                if not await socket.poll(int(1000 * _REPLAY_PATIENCE)):
                    self._replay_from = self._clock.monotonic() + _REPLAY_PAUSE
                    return
                frames = await socket.recv_multipart()
                number = _number(frames)
                # -1 ends it; so does whatever is no replay, or it would not end.
                if number is None or not last < number < until:
                    return
                last = number
                yield number, frames[-1]
        except zmq.ZMQError as error:
            log.warning("Lost KV events of %s cannot be had again: %s", self._id, error)
        finally:
            socket.close(linger=0)

    def _lose(self, count: int) -> None:
        """Removals may be among them: nothing that was told before is certain."""
        # What was told before the gateway came is not lost.
        self.num_lost += count if self.num_messages > 1 else 0
        self._index.purge(self._id)

    def _apply(self, payload: bytes) -> None:
        try:
            events = decode_batch(payload)
        except MalformedError as error:
            self._complain(str(error))
            self._index.purge(self._id)
            return
        for event in events:
            self._index.apply(self._id, event)

    def _complain(self, what: str) -> None:
        self.num_malformed += 1
        # 1, 2, 4, 8, …: a replica that speaks another language would fill the disk.
        if self.num_malformed & (self.num_malformed - 1) == 0:
            log.warning("KV events of %s: %s (%d so far)", self._id, what, self.num_malformed)


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()


def _number(frames: Sequence[bytes]) -> int | None:
    """The number of a message; None for what has none, or -1."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    number = int.from_bytes(frames[-2], "big", signed=True)
    return number if number >= 0 else None


class EventReaders:
    """A reader for each replica that publishes."""

    def __init__(
        self,
        index: ExactIndex,
        watch: Callable[[str], None],
        forget: Callable[[str], None],
        clock: Clock = SystemClock(),  # noqa: B008
    ) -> None:
        """`watch` is told of each replica that is read from now on, `forget` of each that is not any more."""
        self._index = index
        self._watch = watch
        self._forget = forget
        self._clock = clock
        self._context: zmq.asyncio.Context | None = None
        self._readers: dict[str, tuple[EventReader, asyncio.Task[Any]]] = {}

    def sync(self, specs: Iterable[ReplicaSpec]) -> None:
        """Read from exactly these of them that publish. Call it in the event loop whenever replicas come or go."""
        wanted = {spec.name: spec for spec in specs if spec.kv_events}
        for replica_id in list(self._readers):
            spec = wanted.get(replica_id)
            reader = self._readers[replica_id][0]
            if spec is None or (spec.kv_events, spec.kv_events_replay) != reader.endpoints:
                self._stop(replica_id)
        for replica_id, spec in wanted.items():
            if replica_id not in self._readers:
                self._context = self._context or zmq.asyncio.Context()
                reader = EventReader(replica_id, spec, self._index, self._context, self._clock)
                task = asyncio.create_task(reader.run(), name=f"kv-events-{replica_id}")
                self._readers[replica_id] = (reader, task)
                self._watch(replica_id)

    def readers(self) -> dict[str, EventReader]:
        """By replica: for metrics."""
        return {replica_id: reader for replica_id, (reader, _) in self._readers.items()}

    async def close(self) -> None:
        """Stop reading."""
        tasks = [task for _, task in self._readers.values()]
        for replica_id in list(self._readers):
            self._stop(replica_id)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _stop(self, replica_id: str) -> None:
        self._readers.pop(replica_id)[1].cancel()
        self._forget(replica_id)
