"""One resumable transfer into a `.part` file, whatever the protocol.

The part file has a neighbour that names the version of the remote file (its ETag), so that a later
attempt, even of another process, appends only to bytes of the same version.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources.progress import Progress

ATTEMPTS: Final = 6
CHUNK_BYTES: Final = 1 << 20
#: No model file is larger; a server that announces more is broken or hostile.
MAX_FILE_BYTES: Final = 2 << 40


class TransientError(Exception):
    """The connection broke or the server is busy; trying again may help."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The remote file's bytes from `start` on."""

    start: int
    total: int | None
    version: str | None
    """A strong validator; None when the remote cannot tell versions apart."""
    chunks: Iterator[bytes]


class Remote(Protocol):
    """A file somewhere else."""

    @property
    def label(self) -> str: ...

    def open(self, start: int, version: str | None) -> AbstractContextManager[Reply]:
        """Bytes from `start` on if the remote still has `version`, else from 0.

        Raises TransientError when another attempt may help, DownloadError when none will.
        """
        ...


def transfer(
    remote: Remote,
    part: Path,
    progress: Progress,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Complete `part`. Raises DownloadError after ATTEMPTS without a new byte; the part stays.

    For a part that is complete already this asks only whether the remote file is still the same.
    """
    failures = 0
    while True:
        before = _size(part)
        try:
            _continue(remote, part, progress)
        except TransientError as error:
            failures = failures + 1 if _size(part) <= before else 1
            if failures >= ATTEMPTS:
                raise DownloadError(
                    f"{remote.label} could not be fetched: {error}. What has arrived is kept; "
                    "try again to continue."
                ) from error
            sleep(min(2.0 ** (failures - 1), 30.0) / 2)
        else:
            return


def version_file(part: Path) -> Path:
    """Where the version of the part's bytes is noted."""
    return part.with_name(part.name + ".version")


def _continue(remote: Remote, part: Path, progress: Progress) -> None:
    """One attempt. Appends to what is there, or starts anew when the remote says so."""
    known = _read_version(part)
    start = _size(part) if known is not None else 0
    with remote.open(start, known) as reply:
        if reply.total is not None and reply.total > MAX_FILE_BYTES:
            raise DownloadError(f"{remote.label} announces {reply.total} bytes, which is too much.")
        if reply.start not in (0, start):
            raise DownloadError(f"{remote.label} answered with another range than was asked for.")
        _note_version(part, reply.version)
        done = reply.start
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(done)
            file.seek(done)
            for chunk in reply.chunks:
                file.write(chunk)
                done += len(chunk)
                progress.set(done, reply.total)
                if done > (MAX_FILE_BYTES if reply.total is None else reply.total):
                    raise DownloadError(f"{remote.label} sent more bytes than it announced.")
    if reply.total is not None and done < reply.total:
        raise TransientError(f"the connection ended at {done} of {reply.total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_version(part: Path) -> str | None:
    note = version_file(part)
    return note.read_text("utf-8") if part.exists() and note.exists() else None


def _note_version(part: Path, version: str | None) -> None:
    if version is None:
        version_file(part).unlink(missing_ok=True)
    else:
        version_file(part).write_text(version, "utf-8")
