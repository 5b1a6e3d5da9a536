"""Runs batches: begins their requests while there is room, takes them back when there is none, ends batches.

All state that matters is on the disk; what is here can be made again from it at any time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import OverloadedError
from headrace.server.admission import Admission
from headrace.server.batches import files, records
from headrace.server.batches.attempt import Outcome, attempt, without_room
from headrace.server.batches.capacity import Traffic, num_to_start, num_to_take_back
from headrace.server.batches.disk import Disk
from headrace.server.batches.lines import LineBounds, Place, survey
from headrace.server.batches.records import StoredBatch, Verdict
from headrace.server.batches.results import finish
from headrace.web.asgi import App
from headrace.web.keys import KeyRing

#: Places of one batch that are in memory.
_PAGE: Final = 64
#: Seconds between two looks at what is going on: while there is work, and while there is none.
_BUSY_PERIOD: Final = 0.1
_IDLE_PERIOD: Final = 1.0
#: Seconds between two looks for what has expired.
_SWEEP_PERIOD: Final = 60.0

log = logging.getLogger("headrace.server")


class _Flight:
    """A request that runs."""

    def __init__(self, place: Place) -> None:
        self.place: Final = place
        self.task: asyncio.Task[None] | None = None
        self.is_answered = False
        """Its answer is being written down: it is no longer to be stopped."""

    def stop(self) -> bool:
        """Whether it was stopped; it is to be begun again then."""
        return not self.is_answered and self.task is not None and self.task.cancel()


class _Active:
    """A batch whose requests are being answered."""

    def __init__(self, stored: StoredBatch) -> None:
        self.id: Final = stored.batch.id
        self.batch: Final = stored.batch
        self.owner: Final = stored.owner
        self.places: deque[Place] = deque()
        self.cursor = 0
        self.is_read = False
        """All places have been in memory."""
        self.tries: dict[int, int] = {}
        self.flights: list[_Flight] = []

    @property
    def is_done(self) -> bool:
        """All its requests have been answered."""
        return self.is_read and not self.places and not self.flights

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop what runs; the tasks to wait for."""
        for flight in self.flights:
            flight.stop()
        return [flight.task for flight in self.flights if flight.task is not None]


class BatchRunner:
    """One event loop's. `wake` when something has changed on the disk."""

    def __init__(
        self, disk: Disk, config: ServerConfig, clock: Clock, admission: Admission, keys: KeyRing
    ) -> None:
        self.app: App | None = None
        """Answers requests; set before it runs."""
        self._disk = disk
        self._config = config
        self._clock = clock
        self._admission = admission
        self._keys = keys
        self._wake = asyncio.Event()
        self._has_news = True
        self._is_stopping = False
        self._active: dict[str, _Active] = {}
        self._order: deque[str] = deque()
        self._chores: dict[str, asyncio.Task[None]] = {}
        self._rests_until = self._waiting_since = self._next_sweep = 0.0
        admission.on_enter = self._wake.set

    def wake(self) -> None:
        """A batch is new or is to end."""
        self._has_news = True
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled; then nothing of a batch runs any more."""
        try:
            await self._disk.run(files.sweep_strays)
            while True:
                self._wake.clear()
                try:
                    await self._turn()
                except Exception:
                    log.exception("Batches cannot go on now; trying again")
                    await asyncio.sleep(_IDLE_PERIOD)
                period = _BUSY_PERIOD if self._active else _IDLE_PERIOD
                with suppress(TimeoutError):
                    # Not `wait_for`, which in Python 3.11 may lose a cancellation to an event.
                    async with asyncio.timeout(period):
                        await self._wake.wait()
        finally:
            self._is_stopping = True
            tasks = list(self._chores.values())
            for task in tasks:
                task.cancel()
            for active in self._active.values():
                tasks += active.stop()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        now = self._clock.wall()
        if self._clock.monotonic() >= self._next_sweep:
            self._next_sweep = self._clock.monotonic() + _SWEEP_PERIOD
            await self._disk.run(records.sweep, int(now - self._config.batches.batch_retention))
            await self._disk.run(files.sweep, int(now))
        if self._has_news:
            self._has_news = False
            await self._look()
        for active in list(self._active.values()):
            if active.batch.expires_at <= now:
                self._end(active, "expired")
            elif self._keys.is_needed and self._keys.of_owner(active.owner) is None:
                log.warning("The API key of batch %s is no longer good", active.id)
                self._end(active, "cancelled")
            elif active.is_done:
                self._end(active, "completed")
        self._take_back()
        await self._start()

    async def _look(self) -> None:
        """Take up what the disk says."""
        for stored in await self._disk.run(records.unfinished):
            batch = stored.batch
            if batch.id in self._chores:
                continue
            if batch.status == "in_progress":
                if batch.id not in self._active:
                    self._active[batch.id] = _Active(stored)
                    self._order.append(batch.id)
            elif batch.status == "validating":
                self._do(batch.id, self._survey(stored))
            elif (active := self._active.get(batch.id)) is not None:
                self._end(active, "cancelled")
            else:
                self._do(batch.id, self._finish(batch.id, stored.verdict or "completed"))

    # -- its beginning and its end ------------------------------------------------------------------

    def _do(self, batch_id: str, work: Coroutine[Any, Any, None]) -> None:
        async def chore() -> None:
            try:
                await work
            except Exception:
                log.exception("Batch %s cannot go on now; trying again", batch_id)
                await asyncio.sleep(_IDLE_PERIOD)
            finally:
                del self._chores[batch_id]
                self.wake()

        self._chores[batch_id] = asyncio.create_task(chore(), name=f"batch {batch_id}")

    async def _survey(self, stored: StoredBatch) -> None:
        batch = stored.batch
        bounds = LineBounds(
            max_lines=self._config.batches.max_batch_lines,
            max_bytes=self._config.max_body_bytes,
            max_depth=self._config.max_json_depth,
        )
        path = self._disk.content(batch.input_file_id)
        places, faults = await asyncio.to_thread(
            survey, path, batch.endpoint, bounds, lambda: self._is_stopping
        )
        if self._is_stopping:
            return
        now = int(self._clock.wall())
        if faults:
            await self._disk.run(records.fail, batch.id, faults, now)
        else:
            await self._disk.run(records.begin, batch.id, places, now)

    def _end(self, active: _Active, verdict: Verdict) -> None:
        del self._active[active.id]
        self._order.remove(active.id)
        self._do(active.id, self._finish(active.id, verdict, active.stop()))

    async def _finish(
        self, batch_id: str, verdict: Verdict, tasks: Sequence[asyncio.Task[None]] = ()
    ) -> None:
        # What is being written down is still to be counted.
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._disk.run(records.decide, batch_id, verdict, int(self._clock.wall()))
        stored = await self._disk.run(records.find, batch_id)
        if stored is None or stored.batch.status != "finalizing":
            return
        retention = int(self._config.batches.batch_retention)
        batch = await self._disk.run(finish, stored, int(self._clock.wall()), retention)
        counts = batch.request_counts
        log.info(
            "Batch %s is %s: %d of %d requests answered, %d failed",
            batch.id, batch.status, counts.completed, counts.total, counts.failed,
        )  # fmt: skip

    # -- its requests -------------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """Requests that run."""
        return sum(len(active.flights) for active in self._active.values())

    def _traffic(self) -> Traffic:
        now, admission = self._clock.monotonic(), self._admission
        if not admission.num_waiting:
            self._waiting_since = now
        return Traffic(
            max_running=admission.max_running,
            num_waiting=admission.num_waiting,
            num_started=admission.num_started,
            num_batched=self.num_in_flight,
            waited=now - self._waiting_since,
        )

    def _take_back(self) -> None:
        """The youngest of the batch that came last give way first."""
        count = num_to_take_back(self._traffic())
        for active in reversed(self._active.values()):
            for flight in reversed(active.flights):
                if count <= 0:
                    return
                if flight.stop():
                    count -= 1

    async def _start(self) -> None:
        """Begin what there is room for, a request of each batch in turn."""
        if self._admission.is_closed or self._clock.monotonic() < self._rests_until:
            return
        room = num_to_start(self._traffic(), self._config.batches.batch_concurrency)
        num_idle = 0
        while room > 0 and num_idle < len(self._order):
            active = self._active[self._order[0]]
            self._order.rotate(-1)
            if not active.places and not active.is_read:
                await self._read_on(active)
            if active.places:
                self._begin(active, active.places.popleft())
                room, num_idle = room - 1, 0
            else:
                num_idle += 1
                if active.is_done:
                    self._wake.set()

    async def _read_on(self, active: _Active) -> None:
        found = await self._disk.run(records.waiting, active.id, active.cursor, _PAGE)
        active.places.extend(found)
        active.is_read = len(found) < _PAGE
        if found:
            active.cursor = found[-1].number

    def _begin(self, active: _Active, place: Place) -> None:
        flight = _Flight(place)
        active.flights.append(flight)
        name = f"{active.id} {place.number}"
        flight.task = asyncio.create_task(self._answer(active, flight), name=name)
        flight.task.add_done_callback(lambda task: self._landed(active, flight, task))

    def _landed(self, active: _Active, flight: _Flight, task: asyncio.Task[None]) -> None:
        active.flights.remove(flight)
        if task.cancelled():
            active.places.appendleft(flight.place)
        elif (error := task.exception()) is not None:
            number = flight.place.number
            log.error("Line %d of batch %s failed", number, active.id, exc_info=error)
            self._rests_until = self._clock.monotonic() + _IDLE_PERIOD
            active.places.append(flight.place)
        self._wake.set()

    async def _answer(self, active: _Active, flight: _Flight) -> None:
        assert self.app is not None
        place = flight.place
        key = self._keys.of_owner(active.owner)
        path = self._disk.content(active.batch.input_file_id)
        tries = active.tries.pop(place.number, 0)
        outcome = await attempt(
            self.app, path, active.batch.endpoint, active.id, place, key, tries=tries
        )
        if outcome.rest is not None:
            active.tries[place.number] = tries + 1
            self._rests_until = self._clock.monotonic() + outcome.rest
            active.places.append(place)
            return
        flight.is_answered = True
        await self._keep(active, place, outcome)

    async def _keep(self, active: _Active, place: Place, outcome: Outcome) -> None:
        limit = self._config.batches.batch_storage
        try:
            await self._record(active, place, outcome.line, outcome.is_ok, limit)
        except OverloadedError:
            path = self._disk.content(active.batch.input_file_id)
            line = await asyncio.to_thread(without_room, path, active.id, place)
            await self._record(active, place, line, False, None)

    async def _record(
        self, active: _Active, place: Place, line: bytes, is_ok: bool, max_bytes: int | None
    ) -> None:
        await self._disk.run(
            records.record, active.id, place.number, line, is_ok=is_ok, max_bytes=max_bytes
        )
