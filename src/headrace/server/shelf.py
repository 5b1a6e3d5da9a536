"""Several models in one memory: loaded when they are asked for, the ones used least recently make room.

A model with requests is never evicted, one that is kept neither. Loads are single-flight: whoever wants a model that
is being loaded waits for the same load. What cannot be loaded is not tried again before a delay that doubles.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.core.stats import ReplicaState
from headrace.engine.launch import EngineProcess
from headrace.observe import model_metrics
from headrace.observe.metrics import Metrics
from headrace.server.model_life import ModelLife
from headrace.server.served_model import ServedModel

#: Seconds before a load that failed is tried again; doubled each time, up to the second value.
RETRY_DELAYS = (1.0, 60.0)
#: Seconds between two looks whether a model has become idle.
LOOK_PERIOD = 0.05

log = logging.getLogger("headrace.server")


@dataclass(slots=True)
class _Place:
    """What the shelf knows of one model."""

    life: ModelLife
    is_kept: bool
    guess: Callable[[], int]
    """Bytes that it may need, from its files: called on a thread, and once."""
    num_bytes: int = 0
    """That it is known, or guessed, to need; 0: not known yet."""
    takes_room: bool = False
    """It is loaded, or is about to be."""
    load: asyncio.Task[None] | None = None
    failed: str = ""
    """Why the last load failed."""
    retry_at: float = 0.0
    delay: float = RETRY_DELAYS[0]

    @property
    def model(self) -> ServedModel:
        return self.life.model


class Spare:
    """An engine process without a model, so that a load need not wait for its start."""

    def __init__(self, launch: Callable[[], EngineProcess] | None) -> None:
        """None: there is none."""
        self._launch = launch
        self._process: EngineProcess | None = None

    def prepare(self) -> None:
        """Start one, if there is none. Takes the milliseconds of a fork."""
        if self._process is None and self._launch is not None:
            try:
                self._process = self._launch()
            except OSError as error:
                log.warning("No spare engine process could be started: %s", error)

    def take(self) -> EngineProcess | None:
        """One that still runs; whoever takes it owns it."""
        process, self._process = self._process, None
        if process is not None and process.wait(0) is not None:
            process.socket.close()
            return None
        return process

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.socket.close()
            process.wait(None)


class Shelf:
    """One event loop's."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        *,
        max_bytes: int,
        timeout: float,
        spare: Spare,
        on_change: Callable[[], None],
    ) -> None:
        """Models take `max_bytes` together; a request waits `timeout` seconds for its own."""
        self._clock = clock
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._spare = spare
        self._on_change = on_change
        self._places: dict[str, _Place] = {}
        self._room = asyncio.Lock()
        self.is_ready = False
        """Those that are kept have been loaded once: requests may come."""

    def add(self, name: str, life: ModelLife, *, is_kept: bool, guess: Callable[[], int]) -> None:
        """A model that may be asked for; `guess` says how many bytes it may need."""
        self._places[name] = _Place(life, is_kept, guess)

    async def open(self, launched: Mapping[str, EngineProcess]) -> None:
        """Load those that are kept, with engine processes that were launched for them already. Raises HeadraceError."""
        for name, process in launched.items():
            place = self._places[name]
            place.takes_room = True
            await place.life.begin(process)
        for name in launched:
            place = self._places[name]
            await place.life.become_ready()
            self._note_loaded(place)
        if self._taken() > self._max_bytes:
            raise UnavailableError(
                f"The models that are kept need {_mib(self._taken())}, "
                f"and models_memory is {_mib(self._max_bytes)}."
            )
        self.is_ready = True
        self._prepare_spare()

    async def close(self) -> None:
        """End loads and the spare process; the models are their owner's."""
        loads = [place.load for place in self._places.values() if place.load is not None]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        self._spare.close()

    async def ready(self, model: ServedModel) -> float:
        """Have a model loaded, or woken, that its caller holds; the seconds that it took.

        Raises UnavailableError when it cannot be, or not in time.
        """
        place = next(p for p in self._places.values() if p.model is model)
        if model.closed is not None:
            raise UnavailableError(model.closed)
        began = self._clock.monotonic()
        if place.load is None or place.load.done():
            self._check_retry(place)
            place.load = asyncio.create_task(self._bring(place), name=f"load {model.name}")
            # Whoever waits is told; nobody else has to be.
            place.load.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.shield(place.load)
        except TimeoutError:
            raise UnavailableError(
                f"The model '{model.name}' is still not loaded after {self._timeout:g} s."
            ) from None
        seconds = self._clock.monotonic() - began
        self._metrics.histogram(model_metrics.COLD_START, (model.name,)).observe(seconds)
        return seconds

    async def evict(self, life: ModelLife, patience: float) -> None:
        """Unload a model once its requests have ended; it is loaded again when it is asked for.

        Raises UnavailableError while it is being loaded, and when requests hold it after `patience` seconds.
        """
        place = next(p for p in self._places.values() if p.life is life)
        name = place.model.name
        if place.load is not None and not place.load.done():
            raise UnavailableError(f"The model '{name}' is being loaded.")
        if not place.takes_room:
            return
        place.model.closed = f"The model '{name}' is being unloaded."
        try:
            if not await place.model.wait_unused(patience):
                raise UnavailableError(f"The model '{name}' still has requests.")
            await self._unload(place)
        finally:
            place.model.closed = None

    # -- loading ----------------------------------------------------------------------------------

    async def _bring(self, place: _Place) -> None:
        """One load, or waking, for all that wait for it."""
        state = place.model.client.state
        if place.takes_room and state is ReplicaState.PARKED:
            await place.life.resume()
        elif place.takes_room:
            await place.life.wait_back()  # its process had ended, and is started again
        else:
            await self._load(place)

    async def _load(self, place: _Place) -> None:
        name = place.model.name
        log.info("Loading the model '%s'; what is not here of it is fetched first", name)
        try:
            async with self._room:
                if not place.num_bytes:
                    place.num_bytes = await asyncio.to_thread(place.guess)
                await self._make_room(place)
                place.takes_room = True
            await place.life.open(self._spare.take())
            self._note_loaded(place)
            async with self._room:
                await self._make_room(place)
        except HeadraceError as error:
            if place.takes_room:
                await self._unload(place)
            self._metrics.add(model_metrics.MODEL_LOADS, (name, "failed"))
            place.failed, delay = str(error), place.delay
            place.retry_at = self._clock.monotonic() + delay
            place.delay = min(2 * delay, RETRY_DELAYS[1])
            log.error("The model '%s' could not be loaded: %s", name, error)
            raise self._refusal(place) from error
        finally:
            self._prepare_spare()
        place.failed, place.delay = "", RETRY_DELAYS[0]
        self._metrics.add(model_metrics.MODEL_LOADS, (name, "loaded"))
        log.info("Loaded the model '%s'; all take %s", name, _mib(self._taken()))

    def _note_loaded(self, place: _Place) -> None:
        info = place.model.info
        if info is not None:
            place.num_bytes = info.memory_bytes
        self._on_change()

    def _check_retry(self, place: _Place) -> None:
        if place.failed and self._clock.monotonic() < place.retry_at:
            raise self._refusal(place)

    def _refusal(self, place: _Place) -> UnavailableError:
        wait = max(1.0, place.retry_at - self._clock.monotonic())
        return UnavailableError(
            f"The model '{place.model.name}' could not be loaded: {place.failed} "
            f"It is tried again in {wait:.0f} s.",
            retry_after=wait,
        )

    # -- room -------------------------------------------------------------------------------------

    async def _make_room(self, wanted: _Place) -> None:
        """Evict until there is room for `wanted`. Raises UnavailableError where there cannot be.

        While all that could go has requests, it waits: the first that becomes idle goes.
        """
        fixed = sum(p.num_bytes for p in self._loaded(wanted) if p.is_kept)
        if fixed + wanted.num_bytes > self._max_bytes:
            besides = f" beside {_mib(fixed)} of models that are kept" if fixed else ""
            raise UnavailableError(
                f"It needs {_mib(wanted.num_bytes)}{besides}, "
                f"and models_memory is {_mib(self._max_bytes)}."
            )
        deadline = self._clock.monotonic() + self._timeout
        while self._taken(wanted) + wanted.num_bytes > self._max_bytes:
            idle = [p for p in self._loaded(wanted) if not p.is_kept and self._is_idle(p)]
            if idle:
                await self._unload(min(idle, key=lambda p: p.model.last_used))
            elif self._clock.monotonic() > deadline:
                raise UnavailableError("Other models have requests, and their memory is needed.")
            else:
                await asyncio.sleep(LOOK_PERIOD)

    def _loaded(self, but: _Place | None = None) -> list[_Place]:
        return [p for p in self._places.values() if p.takes_room and p is not but]

    def _taken(self, but: _Place | None = None) -> int:
        return sum(p.num_bytes for p in self._loaded(but))

    def _is_idle(self, place: _Place) -> bool:
        is_loading = place.load is not None and not place.load.done()
        return not (place.model.num_users or is_loading or place.life.is_changing)

    async def _unload(self, place: _Place) -> None:
        name = place.model.name
        was_loaded = place.model.preparer is not None
        # Requests that come from now on see that it is not there, and wait for a load of their own.
        await place.life.close()
        place.takes_room = False
        self._on_change()
        if was_loaded:
            self._metrics.add(model_metrics.MODEL_EVICTIONS, (name,))
            log.info("Unloaded the model '%s'", name)

    def _prepare_spare(self) -> None:
        if any(not place.takes_room for place in self._places.values()):
            self._spare.prepare()


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
