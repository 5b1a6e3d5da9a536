"""Replicas of the local driver that serve nothing: shells that start in milliseconds, and what is left of them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from tests.support.processes import is_gone, until

from headrace.config.fleet.pools import PoolConfig
from headrace.core.clock import Clock
from headrace.fleet.drivers.local.machine import Machine

#: Ends when it is told to, and leaves a child behind that does not notice.
OBEDIENT = ("/bin/sh", "-c", "sleep 1000 & wait", "stub")
#: Has to be killed.
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; sleep 1000 & while :; do wait; done", "stub")
#: Says why, and ends.
FAULTY = (
    "/bin/sh",
    "-c",
    "echo loading; echo 'headrace: error: no such model' >&2; exit 3",
    "stub",
)

POOL = PoolConfig(name="chat", model="tiny")


def machine(directory: Path, clock: Clock, command: tuple[str, ...] = OBEDIENT) -> Machine:
    """What a controller makes when it starts."""
    return Machine(directory, clock, command=command, max_log_bytes=64 * 1024)


@contextmanager
def swept(directory: Path) -> Iterator[Path]:
    """A directory of notes; afterwards none of the replicas runs that write their logs there, whatever the test did."""
    try:
        yield directory
    finally:
        until(lambda: not _swept(directory), f"all replicas of {directory} are gone")


def _swept(directory: Path) -> bool:
    """Some were found, and killed; they may just have started others."""
    found = False
    for pid in psutil.pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/fd/2").readlink().parent == directory:
                found = True
                os.kill(pid, signal.SIGKILL)
    return found


def end_session(pid: int) -> None:
    """Kill a replica and all that it started, as an operator may."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def pid_of(found: Machine, replica_id: str) -> int:
    described = found.describe(replica_id)
    assert described is not None
    return int(described["pid"])


def wait_gone(*pids: int) -> None:
    """Until all have ended, zombies being gone too."""

    def all_gone() -> bool:
        return all(_is_gone(pid) for pid in pids)

    until(all_gone, f"{pids} have ended")


def _is_gone(pid: int) -> bool:
    try:
        return is_gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def session_of(pid: int) -> list[int]:
    """Living processes of the session that a replica leads."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == pid and not is_gone(process):
                found.append(process.pid)
    return found
