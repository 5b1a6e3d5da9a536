"""The local driver: each replica is a `headrace serve` of its own session, with a note that says which process it is."""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.config.fleet.drivers import LocalConfig
from headrace.config.fleet.pools import PoolConfig
from headrace.core.clock import Clock
from headrace.core.errors import DriverError
from headrace.fleet.drivers.blocking import OneAtATime
from headrace.fleet.drivers.local.machine import Machine
from headrace.fleet.drivers.protocol import Instance

#: Seconds between two looks at a replica that is late to end.
_LOOK_PERIOD = 0.2

log = logging.getLogger("headrace.fleet")


class LocalDriver:
    """Implements `fleet.drivers.protocol.Driver`. Files and processes are looked at in a thread, one call at a time."""

    def __init__(
        self,
        directory: Path,
        config: LocalConfig,
        clock: Clock,
        *,
        command: Sequence[str] = (sys.executable, "-P", "-m", "headrace", "serve"),
    ) -> None:
        """`directory` is this fleet's own. `command` is what serves, before its flags.

        Raises DriverError for a directory that cannot be used, ConfigError for a machine that cannot.
        """
        self._machine = Machine(
            directory, clock, command=command, max_log_bytes=config.max_log_bytes
        )
        self._clock = clock
        self._calls = OneAtATime("This machine")
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._looks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    async def list(self) -> Sequence[Instance]:
        """What the notes say, each held against its process."""
        return await self._calls.do(self._machine.list)

    async def start(self, pool: PoolConfig, *, prestarted: bool = False) -> Instance:
        """At once RUNNING: its socket listens before it begins, so that whoever calls it waits and is not refused.

        One that is pre-started parks its model as soon as it is loaded, which its own word tells.
        """
        return await self._calls.do(lambda: self._machine.start(pool, parked=prestarted))

    async def stop(self, instance_id: str, *, grace: float) -> None:
        """Tell it to end and return; it is STOPPING until it has ended, or is killed after `grace` seconds.

        A later call may shorten what is left of an earlier grace, and never lengthens it.
        """
        deadline = await self._calls.do(lambda: self._machine.stop(instance_id, max(0.0, grace)))
        if (timer := self._timers.pop(instance_id, None)) is not None:
            timer.cancel()
        if deadline is not None:
            # `list` looks at deadlines too; this is for those who do not ask again.
            self._look_in(instance_id, max(0.0, deadline - self._clock.wall()) + 0.01)

    async def describe(self, instance_id: str) -> Mapping[str, str] | None:
        """Pid, address, command, CPUs, the end of its log."""
        return await self._calls.do(lambda: self._machine.describe(instance_id))

    async def close(self) -> None:
        """Replicas run on; those that are stopping are looked after by the next controller."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*self._looks, return_exceptions=True)

    def _look_in(self, instance_id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[instance_id] = loop.call_later(seconds, self._begin_look, instance_id)

    def _begin_look(self, instance_id: str) -> None:
        self._timers.pop(instance_id, None)
        look: asyncio.Task[object] = asyncio.ensure_future(self._look(instance_id))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self, instance_id: str) -> None:
        """Until it is gone: its time is over."""
        try:
            found = await self.list()
        except DriverError as error:
            log.error("Replicas that stop could not be looked after: %s", error)
            return
        if not self._is_closed and any(instance.id == instance_id for instance in found):
            self._look_in(instance_id, _LOOK_PERIOD)
