"""Logs of replicas: appended to by processes that nobody may watch, and kept short by whoever looks."""

import os
from pathlib import Path
from typing import Final

_TAIL_BYTES: Final = 16 * 1024
_LINE_CHARS: Final = 500


def open_log(path: Path) -> int:
    """A descriptor that appends, for a child. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log, as text that can be shown; [] if there is none."""
    data = _end_of(path, _TAIL_BYTES)
    lines = [line.strip()[:_LINE_CHARS] for line in data.decode(errors="replace").splitlines()]
    return ["".join(c if c.isprintable() else " " for c in line) for line in lines if line][-count:]


def trim(path: Path, max_bytes: int) -> None:
    """Of a log that is too long, keep the last quarter. Writers append, and go on behind it.

    What is written between two system calls may be lost; a process that writes never waits.
    """
    try:
        if path.stat(follow_symlinks=False).st_size <= max_bytes:
            return
        kept = _end_of(path, max_bytes // 4)
        kept = kept[kept.find(b"\n") + 1 :]
        opened = open_log(path)
    except OSError:
        return
    try:
        os.ftruncate(opened, 0)
        os.write(opened, kept)
    except OSError:
        return  # the disk is full: short it is in any case
    finally:
        os.close(opened)


def _end_of(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as opened:
            opened.seek(0, os.SEEK_END)
            opened.seek(max(0, opened.tell() - size))
            return opened.read(size)
    except OSError:
        return b""
