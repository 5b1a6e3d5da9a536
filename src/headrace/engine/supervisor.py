"""Keeps one engine process running: starts it, connects to it, kills it when it hangs, starts another when it ends."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.engine.async_channel import AsyncChannel
from headrace.engine.channel import ChannelError
from headrace.engine.launch import EngineProcess

#: Seconds before the first restart; doubled for each that fails, up to the second value.
RESTART_DELAYS = (0.2, 30.0)
#: Seconds between two looks of the watchdog.
WATCH_PERIOD = 1.0
#: Seconds that a stuck engine gets to write its stacks before it is killed, and to stop at the end.
DUMP_SECONDS = 0.5
STOP_SECONDS = 2.0


class EngineEnd:
    """Why a process is there no more."""

    __slots__ = ("error", "status")

    def __init__(self, status: int | None, error: OSError | None = None) -> None:
        self.status = status
        """Its exit status; None if it could not be started."""
        self.error = error
        """What kept it from being started."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the supervisor asks of its client. All are called on the event loop's thread."""

    launch: Callable[[], EngineProcess]
    began: Callable[[], None]
    """A life begins; nothing was received yet."""
    frames: Callable[[list[bytes]], None]
    is_stuck: Callable[[], bool]
    """It has work and finishes no step: it is to be killed."""
    ended: Callable[[EngineEnd], Callable[[float], None] | None]
    """A life has ended. None: that is all; else it is told in how many seconds another begins."""
    is_stable: Callable[[], bool]
    """The life that has just ended was long and good: the next restart is a first one again."""


class Supervisor:
    """Not thread-safe: one event loop's."""

    def __init__(
        self,
        hooks: Hooks,
        *,
        watch_period: float,
        restart_delays: tuple[float, float] = RESTART_DELAYS,
    ) -> None:
        self._hooks = hooks
        self._watch_period = watch_period
        self._delays = restart_delays
        self._channel: AsyncChannel | None = None
        self._task: asyncio.Task[None] | None = None
        self.process: EngineProcess | None = None
        self.num_restarts = 0

    @property
    def is_connected(self) -> bool:
        """There is somebody to send to."""
        return self._channel is not None and not self._channel.closed.done()

    def start(self, process: EngineProcess | None) -> None:
        """Begin; `process` is one that was launched already."""
        self._task = asyncio.create_task(self._supervise(process), name="engine supervisor")

    def send(self, payload: bytes) -> None:
        """A frame. Raises ChannelError when nobody takes it; without a process it is dropped."""
        if self._channel is not None:
            self._channel.send(payload)

    def abort(self) -> None:
        """Drop the connection: the process ends, and another is started."""
        if self._channel is not None:
            self._channel.abort()

    async def stop(self, farewell: bytes) -> None:
        """End the process, and start no other."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.is_connected and self._channel is not None:
            try:
                self._channel.send(farewell)
            except ChannelError:
                self._channel.abort()  # it does not read, and is killed below
        await self._end_process(STOP_SECONDS)

    async def _supervise(self, process: EngineProcess | None) -> None:
        delay = self._delays[0]
        while True:
            end = await self._one_life(process)
            process = None
            if self._hooks.is_stable():
                delay = self._delays[0]
            tell = self._hooks.ended(end)
            if tell is None:
                return
            tell(delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._delays[1])
            self.num_restarts += 1

    async def _one_life(self, process: EngineProcess | None) -> EngineEnd:
        """From the process's start to its end."""
        self._hooks.began()
        try:
            self.process = process or self._hooks.launch()
        except OSError as error:
            return EngineEnd(None, error)
        await self._live(self.process)
        return EngineEnd(await self._end_process(0.0))

    async def _live(self, process: EngineProcess) -> None:
        """From the connection to its end."""
        # Known before it is attached: a process that was launched long ago has spoken already, and is answered.
        self._channel = AsyncChannel(self._hooks.frames)
        await self._channel.attach(process.socket)
        watchdog = asyncio.create_task(self._watch(process), name="engine watchdog")
        try:
            await asyncio.shield(self._channel.closed)
        finally:
            watchdog.cancel()

    async def _watch(self, process: EngineProcess) -> None:
        """Kill an engine that has work and finishes no step."""
        while True:
            await asyncio.sleep(self._watch_period)
            if self._hooks.is_stuck():
                process.dump_stacks()
                await asyncio.sleep(DUMP_SECONDS)
                process.kill()
                return

    async def _end_process(self, patience: float) -> int | None:
        """Wait for the process to end, kill it after `patience` seconds. Returns its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        status = await asyncio.to_thread(process.wait, max(patience, DUMP_SECONDS))
        if self._channel is not None:
            self._channel.abort()
            self._channel = None
        if status is None:
            process.kill()
            status = await asyncio.to_thread(process.wait, None)
        return status
