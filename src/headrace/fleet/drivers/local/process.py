"""Processes of this machine, told apart for certain: a pid alone may be anybody's by now (Linux, proc(5))."""

import os
import signal
from pathlib import Path
from typing import Final

from msgspec import Struct

_PROC: Final = Path("/proc")
_DEAD: Final = frozenset("ZXx")


class Stat(Struct, frozen=True, kw_only=True):
    """Of /proc/PID/stat."""

    pid: int
    state: str
    """R, S, D, Z, …"""
    session: int
    start: int
    """Clock ticks between the machine's start and the process's."""

    @property
    def is_alive(self) -> bool:
        """It has not ended; a zombie has."""
        return self.state not in _DEAD


def boot_id() -> str:
    """Of this start of the machine: start times of another one mean nothing."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def stat_of(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too.
    fields = text[text.rfind(b")") + 2 :].split()
    return Stat(pid=pid, state=fields[0].decode(), session=int(fields[3]), start=int(fields[19]))


def command_of(pid: int) -> tuple[str, ...]:
    """Its command line; empty for a zombie and where there is none."""
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="surrogateescape") for part in text.split(b"\0")[:-1])


def is_ours(pid: int) -> bool:
    """It runs as this user."""
    try:
        return (_PROC / str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return False


def members_of(session: int) -> list[Stat]:
    """Processes of a session that have not ended, its leader too. A session's number is not given again while it has any."""
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal():
            stat = stat_of(int(entry.name))
            if stat is not None and stat.session == session and stat.is_alive:
                found.append(stat)
    return found


def send(stat: Stat, number: signal.Signals) -> bool:
    """Signal just that process, and never another one that has its pid by now. False: it is gone, or not ours."""
    try:
        handle = os.pidfd_open(stat.pid)
    except OSError:
        return False
    try:
        # The handle is of whoever has the pid now; it stays that one's.
        now = stat_of(stat.pid)
        if now is None or now.start != stat.start or not now.is_alive:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_session(leader: Stat) -> None:
    """End a process that leads a session, and every other one of it."""
    members = members_of(leader.pid)
    if send(leader, signal.SIGKILL):
        for stat in members:
            send(stat, signal.SIGKILL)


def kill_orphans(session: int, mark: bytes) -> None:
    """End what is left of a session whose leader has ended: those that have `mark` (NAME=value) in their environment.

    A living leader means that it is another session, or one that was not to be ended: nothing is done.
    """
    leader = stat_of(session)
    if leader is not None and leader.is_alive:
        return
    for stat in members_of(session):
        if mark in environment_of(stat.pid):
            send(stat, signal.SIGKILL)


def environment_of(pid: int) -> tuple[bytes, ...]:
    """What it was started with, as NAME=value; empty where it cannot be seen."""
    try:
        return tuple((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return ()
