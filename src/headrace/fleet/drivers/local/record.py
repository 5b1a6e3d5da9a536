"""What is noted of each replica, so that a new controller knows it: one small file each, written whole or not at all.

A note is a hint and never trusted: whoever reads it looks at the process itself.
"""

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from headrace.core.errors import DriverError

MAX_RECORD_BYTES: Final = 64 * 1024
#: Replicas of one fleet on one machine; files beyond are left alone.
MAX_RECORDS: Final = 4096
_ID: Final = re.compile(r"[a-z0-9][-a-z0-9]{0,79}")
_SUFFIX: Final = ".json"

log = logging.getLogger("headrace.fleet")


class Phase(StrEnum):
    """What was last done about a replica."""

    STARTED = "started"
    STOPPING = "stopping"
    FAILED = "failed"
    """It was found to have ended by itself."""


class Record(Struct, frozen=True, kw_only=True):
    """One replica. Unknown fields are passed over: a newer release may have written it."""

    id: Annotated[str, Meta(pattern=_ID.pattern + "$", max_length=80)]
    pool: str
    pid: Annotated[int, Meta(gt=1)]
    start: Annotated[int, Meta(ge=0)]
    """`Stat.start`."""
    boot: str
    command: tuple[str, ...]
    port: Annotated[int, Meta(ge=1, le=65535)]
    spec: msgspec.Raw
    """The ReplicaSpec without its secret."""
    version: str = ""
    revision: str = ""
    started: float = 0.0
    cpus: tuple[int, ...] = ()
    is_prestarted: bool = False
    phase: Phase = Phase.STARTED
    deadline: float = 0.0
    """`Clock.wall` at which a stopping one is killed."""
    is_signalled: bool = False
    """It was told to stop: being told twice means at once."""
    reason: str = ""


def is_id(text: str) -> bool:
    """It can be the id of a replica, and stand in a path."""
    return _ID.fullmatch(text) is not None


def own_directory(directory: Path) -> None:
    """Make it if it is not there, for this user alone. Raises DriverError for one that others could write to."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat(follow_symlinks=False)
    except OSError as error:
        raise DriverError(f"{directory} cannot be made: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise DriverError(f"{directory} must be a directory of this user's own.")
    if found.st_mode & 0o077:
        directory.chmod(0o700)


class Records:
    """A directory of notes, logs and one secret, which only this user may read."""

    def __init__(self, directory: Path) -> None:
        """Raises DriverError for a directory that others could write to."""
        self.directory = directory
        self._complaints: dict[str, str] = {}
        own_directory(directory)

    def read_all(self) -> list[Record]:
        """Every note that can be read. Raises DriverError if the directory cannot."""
        return [record for name in self._names() if (record := self.read(name)) is not None]

    def read(self, replica_id: str) -> Record | None:
        """None: there is none, or none that can be read, which is logged once."""
        if not is_id(replica_id):
            return None
        try:
            record = self._read(self._path(replica_id))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(replica_id, error.strerror or str(error))
            return None
        except (msgspec.DecodeError, ValueError) as error:
            self._complain(replica_id, str(error))
            return None
        if record.id != replica_id:
            self._complain(replica_id, f"it is of {record.id}")
            return None
        self._complaints.pop(replica_id, None)
        return record

    def write(self, record: Record) -> None:
        """Whole, or not at all. Raises DriverError."""
        path = self._path(record.id)
        draft = path.with_name(f".{path.name}")
        try:
            draft.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as opened:
                opened.write(msgspec.json.encode(record))
            draft.replace(path)
        except OSError as error:
            raise DriverError(f"{path} cannot be written: {error.strerror}.") from None

    def remove(self, replica_id: str) -> None:
        """Forget it, with its log."""
        for path in (self._path(replica_id), self.log_path(replica_id)):
            with contextlib.suppress(OSError):
                path.unlink()

    def log_path(self, replica_id: str) -> Path:
        """Where its output goes."""
        return self.directory / f"{replica_id}.log"

    def _path(self, replica_id: str) -> Path:
        return self.directory / f"{replica_id}{_SUFFIX}"

    def _names(self) -> Iterator[str]:
        try:
            names = sorted(entry.name for entry in os.scandir(self.directory))
        except OSError as error:
            raise DriverError(f"{self.directory} cannot be read: {error.strerror}.") from None
        ids = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
        for number, replica_id in enumerate(filter(is_id, ids)):
            if number >= MAX_RECORDS:
                log.error("%s has more than %d replicas", self.directory, MAX_RECORDS)
                return
            yield replica_id

    def _read(self, path: Path) -> Record:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise ValueError("it is not a file of this user")
            data = opened.read(MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES:
            raise ValueError(f"it has more than {MAX_RECORD_BYTES} bytes")
        return msgspec.json.decode(data, type=Record)

    def _complain(self, replica_id: str, words: str) -> None:
        """Once, not at each look."""
        if self._complaints.get(replica_id) != words:
            self._complaints[replica_id] = words
            log.error("The note of replica %s is left alone: %s", replica_id, words)
