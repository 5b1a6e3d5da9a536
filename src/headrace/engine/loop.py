"""The engine process's loop: intake → step → emit, for ever."""

import logging
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from headrace.core.clock import Clock
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request
from headrace.core.stats import EngineStats, StepStats
from headrace.engine.channel import BlockingChannel, ChannelError
from headrace.engine.failure import ExecutorBrokenError, sentence
from headrace.engine.lifecycle import EngineLike, Lifecycle, LoadFailedError
from headrace.engine.messages import (
    AdapterAnswer,
    AdapterOrder,
    Cancel,
    Codec,
    Configure,
    Drain,
    Load,
    Order,
    Park,
    Resume,
    State,
    Stop,
    Submit,
    Unload,
    Update,
    identity_of,
)

#: Seconds between two reports of gauges while the engine is busy.
STATS_PERIOD = 0.05
#: Seconds to wait for news when there is work, none of it can run, and the engine cannot say until when.
BLOCKED_WAIT = 0.002
#: Times in a row that the engine, not a step of it, may fail before the process ends and is started anew.
MAX_FAILED_STEPS = 5

log = logging.getLogger("headrace.engine")


class KVPublisher(Protocol):
    """Where stored and removed blocks are told."""

    def publish(self, events: Sequence[object]) -> None: ...
    def close(self) -> None: ...


class StepsFailedError(Exception):
    """The engine makes no good step any more."""


class _Peer:
    """One connected server: its channel, and what the next update will carry."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel
        self.events: list[TokenEvent] = []
        self.request_ids: set[str] = set()


class EngineLoop:
    """Drives an engine for its connections. Ends when the first connection, the parent's, does.

    More servers may connect to a `listener`: several HTTP processes on one engine.
    """

    def __init__(
        self,
        life: Lifecycle,
        parent: BlockingChannel,
        clock: Clock,
        *,
        listener: socket.socket | None = None,
        publisher: KVPublisher | None = None,
    ) -> None:
        self._life = life
        self._clock = clock
        self._publisher = publisher
        self._listener = listener
        self._codec = Codec()
        self._selector = selectors.DefaultSelector()
        self._parent = _Peer(parent)
        self._peers = [self._parent]
        self._owners: dict[str, tuple[_Peer, int]] = {}  # request id → peer, sequences still open
        self._selector.register(parent, selectors.EVENT_READ, self._parent)
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._is_stopping = False
        self._steps: list[StepStats] = []
        self._last_stats = 0.0
        self._failed_steps = 0
        self._integrity_failures = 0

    @property
    def _engine(self) -> EngineLike:
        return self._life.engine

    def stop(self) -> None:
        """End after the current turn."""
        self._is_stopping = True

    def run(self) -> None:
        """Serve until told to stop or until the parent is gone. Raises StepsFailedError.

        The connections are closed afterwards; the engine and the listener are the caller's.
        """
        try:
            self._turn_for_ever()
        finally:
            self._selector.close()
            for peer in self._peers:
                peer.channel.close()

    def _turn_for_ever(self) -> None:
        is_busy = False
        wait: float | None = None
        while not self._is_stopping:
            self._intake(wait)
            if self._engine.has_work():
                wait, is_urgent = self._advance()
                is_busy = True
            else:
                if is_busy:
                    self._rest()
                is_urgent, is_busy, wait = is_busy, False, None
            for answer in self._engine.take_adapter_answers():
                self._tell_all(answer)
            self._emit(is_busy=is_busy, is_urgent=is_urgent)

    def _advance(self) -> tuple[float, bool]:
        """One step; for how long to wait then, and whether servers must hear of it now."""
        if self._step():
            return 0.0, False
        wake_at = self._engine.wake_at()
        if wake_at is None:
            return BLOCKED_WAIT, False
        # Told, or a server would take it for an engine that hangs.
        return max(0.0, wake_at - self._clock.monotonic()), True

    # -- intake ---------------------------------------------------------------------------------

    def _intake(self, wait: float | None) -> None:
        for key, mask in self._selector.select(wait):
            if isinstance(key.data, _Peer):
                self._serve(key.data, mask)
            else:
                self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        peer = _Peer(BlockingChannel(sock))
        self._peers.append(peer)
        self._selector.register(peer.channel, selectors.EVENT_READ, peer)

    def _serve(self, peer: _Peer, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                peer.channel.flush()
                self._watch(peer)
            frames = peer.channel.receive() if mask & selectors.EVENT_READ else []
        except ChannelError as error:
            log.error("A server's connection is dropped: %s", error)
            frames = None
        if frames is None:
            self._drop(peer)
            return
        for payload in frames:
            self._handle(peer, payload)

    def _handle(self, peer: _Peer, payload: bytes) -> None:
        try:
            message = self._codec.to_engine(payload)
        except msgspec.DecodeError as error:
            self._refuse(peer, payload, str(error))
            return
        if isinstance(message, Submit):
            self._add(peer, message.request)
        elif isinstance(message, Cancel):
            # Only the server that sent a request may end it.
            if message.request_id in peer.request_ids:
                self._route(self._engine.cancel(message.request_id, message.index))
        elif peer is not self._parent or isinstance(message, Configure):
            return  # nobody else gives orders
        elif isinstance(message, AdapterOrder):
            self._order_adapter(message)
        else:
            self._obey(message)

    def _obey(self, message: Order | Stop) -> None:
        if isinstance(message, Stop):
            self.stop()
            return
        if isinstance(message, Drain):
            self._life.drain()
        elif isinstance(message, Resume):
            self._life.resume()
        else:
            self._replace(message)
        self._tell_all(State(self._life.state))

    def _replace(self, message: Park | Load | Unload) -> None:
        verb = "parked" if isinstance(message, Park) else "unloaded"
        self._route(self._engine.fail_all(f"The engine was {verb}."))
        self._publish()
        if isinstance(message, Park):
            self._life.park()
        elif isinstance(message, Load):
            self._emit(is_busy=False, is_urgent=True)  # loading takes its time
            self._failed_steps = self._integrity_failures = 0
            with suppress(LoadFailedError):
                self._life.load(message.engine)
        else:
            self._life.unload()
        self._emit(is_busy=False, is_urgent=True)

    def _order_adapter(self, order: AdapterOrder) -> None:
        if self._life.refusal is None:
            self._engine.order_adapter(order)
            return
        kind = "UnavailableError"
        self._tell_all(AdapterAnswer(job=order.job, error=self._life.refusal, error_kind=kind))

    def _refuse(self, peer: _Peer, payload: bytes, why: str) -> None:
        log.error("A message does not decode: %s", why)
        request_id, n = identity_of(payload)
        if request_id is not None:
            peer.events += _failures(request_id, n, sentence(f"The engine cannot read it: {why}"))

    def _add(self, peer: _Peer, request: Request) -> None:
        if request.request_id in self._owners:
            peer.events += _failures(request.request_id, request.n, "Its id is in use.")
            return
        if self._life.refusal is not None:
            peer.events += _failures(
                request.request_id, request.n, self._life.refusal, "UnavailableError"
            )
            return
        self._owners[request.request_id] = (peer, request.n)
        peer.request_ids.add(request.request_id)
        try:
            self._route(self._engine.add(request))
        except Exception as error:
            log.exception("Request %s could not be taken in", request.request_id)
            reason = f"The engine could not take it in: {type(error).__name__}."
            self._route(_failures(request.request_id, request.n, reason))

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.channel)
        peer.channel.close()
        self._peers.remove(peer)
        if peer is self._parent:
            self.stop()
            return
        for request_id in tuple(peer.request_ids):
            self._route(self._engine.cancel(request_id))
            self._forget(request_id)

    # -- step -----------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Run one step; whether anything came of it."""
        before = self._engine.last_step
        try:
            events = self._engine.step()
        except Exception as error:
            log.exception("The engine failed; all its requests are ended")
            self._failed_steps += 1
            events = self._engine.fail_all(f"The engine failed: {type(error).__name__}.")
            self._route(events)
            is_broken = isinstance(error, ExecutorBrokenError)
            if is_broken or self._failed_steps >= MAX_FAILED_STEPS:
                self._emit(is_busy=False, is_urgent=True)
                why = str(error) if is_broken else f"It failed {self._failed_steps} times in a row."
                raise StepsFailedError(why) from error
            return True
        self._route(events)
        step = self._engine.last_step
        if step is not None and step is not before:
            self._failed_steps = 0
            self._steps.append(step)
        self._publish()
        return bool(events) or step is not before

    def _publish(self) -> None:
        events = self._engine.take_kv_events()
        if self._publisher is not None and events:
            self._publisher.publish(events)

    def _rest(self) -> None:
        """The engine has just become idle: a good time to check its books."""
        for failure in self._engine.check_integrity():
            self._integrity_failures += 1
            log.error("The KV ledger does not add up: %s", failure)
        self._publish()

    # -- emit -----------------------------------------------------------------------------------

    def _route(self, events: list[TokenEvent]) -> None:
        for event in events:
            owner = self._owners.get(event.request_id)
            if owner is None:
                continue
            peer, num_open = owner
            peer.events.append(event)
            if event.finish is None:
                continue
            if num_open > 1:
                self._owners[event.request_id] = (peer, num_open - 1)
            else:
                self._forget(event.request_id)

    def _forget(self, request_id: str) -> None:
        owner = self._owners.pop(request_id, None)
        if owner is not None:
            owner[0].request_ids.discard(request_id)

    def _emit(self, *, is_busy: bool, is_urgent: bool) -> None:
        now = self._clock.monotonic()
        has_events = any(peer.events for peer in self._peers)
        is_due = now - self._last_stats >= STATS_PERIOD if is_busy else has_events
        stats = None
        steps: list[StepStats] = []
        if is_due or is_urgent:
            stats, steps = self._stats(), self._steps
            self._steps, self._last_stats = [], now
        for peer in tuple(self._peers):
            if peer.events or stats is not None:
                self._send(peer, Update(events=peer.events, stats=stats, steps=steps))
                peer.events = []

    def _stats(self) -> EngineStats:
        stats = self._engine.stats()
        if not self._integrity_failures:
            return stats
        total = stats.integrity_failures + self._integrity_failures
        return msgspec.structs.replace(stats, integrity_failures=total)

    def _tell_all(self, message: State | AdapterAnswer) -> None:
        for peer in tuple(self._peers):
            self._send(peer, message)

    def _send(self, peer: _Peer, message: Update | State | AdapterAnswer) -> None:
        try:
            peer.channel.send(self._codec.encode(message))
        except ChannelError as error:
            log.error("A server's connection is dropped: %s", error)
            self._drop(peer)
            return
        if peer.channel.has_outbox:
            self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        wanted = selectors.EVENT_READ
        if peer.channel.has_outbox:
            wanted |= selectors.EVENT_WRITE
        self._selector.modify(peer.channel, wanted, peer)


def _failures(
    request_id: str, n: int, reason: str, kind: str = "InternalError"
) -> list[TokenEvent]:
    """The end of each of a request's sequences."""
    finish = FinishReason.ERROR
    return [
        TokenEvent(request_id, index, finish=finish, error=reason, error_kind=kind)
        for index in range(n)
    ]
