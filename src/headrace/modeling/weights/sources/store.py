"""Fetched models on disk: one folder each, complete or absent, with the digest of every file.

models/NAME/…            the files, and a record of source, sizes and sha256
models/.partial/NAME/    a fetch that is under way or was interrupted
models/.locks/NAME       held while one process fetches; others wait for it
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headrace.config import env
from headrace.core.errors import ConfigError, DownloadError
from headrace.modeling.weights.sources.files import is_model_directory

RECORD: Final = ".headrace.json"
DIRECTORY: Final = "."
#: Asked for the model's name; given the folder for its files and one for what may be resumed.
Fetch = Callable[[Path, Path], str]


class _File(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class _Record(msgspec.Struct, frozen=True):
    source: str
    model: str
    """File name of the model within the folder, "." for the folder."""
    files: dict[str, _File]


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A fetched model."""

    name: str
    source: str
    path: Path
    num_bytes: int
    sha256: str | None
    """Of the model file; None for a directory."""


class ModelStore:
    """The folder of fetched models."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, name: str) -> Path | None:
        """The model's path, when it is here whole (by sizes; `verify` reads every byte)."""
        record = self._record(name)
        if record is None:
            return None
        folder = self.directory / name
        for file, facts in record.files.items():
            path = folder / file
            if not path.is_file() or path.stat().st_size != facts.size:
                return None
        return folder / record.model

    def obtain(self, name: str, source: str, fetch: Fetch, *, sha256: str | None = None) -> Path:
        """The model's path; fetched first when it is not here. Raises DownloadError.

        `sha256` is the promised digest of the model file.
        """
        found = self.find(name)
        if found is not None:
            return found
        try:
            with self._lock(name):
                return self.find(name) or self._fetch(name, source, fetch, sha256)
        except OSError as error:
            raise DownloadError(
                f"{source} could not be stored: {error}. HEADRACE_CACHE names another directory."
            ) from error

    def list(self) -> list[CachedModel]:
        """All whole models, by name."""
        if not self.directory.is_dir():
            return []
        models = []
        for folder in sorted(self.directory.iterdir()):
            path = self.find(folder.name)
            record = self._record(folder.name)
            if path is None or record is None:
                continue
            size = sum(file.size for file in record.files.values())
            facts = record.files.get(record.model)
            digest = facts.sha256 if facts else None
            models.append(CachedModel(folder.name, record.source, path, size, digest))
        return models

    def remove(self, name: str) -> int:
        """Delete a model and what an interrupted fetch left of it; the bytes that were freed."""
        folders = [self.directory / name, self.directory / ".partial" / name]
        freed = 0
        with self._lock(name):
            for folder in folders:
                freed += sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
                shutil.rmtree(folder, ignore_errors=True)
        return freed

    def verify(self, name: str) -> bool:
        """Every byte of the model is as it was fetched. Reads it all."""
        record = self._record(name)
        if record is None or self.find(name) is None:
            return False
        folder = self.directory / name
        return all(_sha256(folder / file) == facts.sha256 for file, facts in record.files.items())

    # ---- fetching ------------------------------------------------------------------------------

    def _fetch(self, name: str, source: str, fetch: Fetch, sha256: str | None) -> Path:
        work = self.directory / ".partial" / name
        files = work / "files"
        files.mkdir(parents=True, exist_ok=True)
        model = fetch(files, work)
        try:
            _check_model(files, model, source)
            record = _Record(source, model, dict(_describe(files)))
            if sha256 is not None and record.files[model].sha256 != sha256.lower():
                raise DownloadError(
                    f"{source} has the sha256 {record.files[model].sha256}, but {sha256} was promised."
                )
        except DownloadError:
            shutil.rmtree(work, ignore_errors=True)
            raise
        (files / RECORD).write_bytes(msgspec.json.encode(record))
        for path in files.rglob("*"):
            _sync(path)
        _sync(files)
        folder = self.directory / name
        shutil.rmtree(folder, ignore_errors=True)
        files.rename(folder)
        _sync(self.directory)
        shutil.rmtree(work, ignore_errors=True)
        return folder / model

    def _record(self, name: str) -> _Record | None:
        if not name or name.startswith(".") or "/" in name:
            return None
        try:
            content = (self.directory / name / RECORD).read_bytes()
            record = msgspec.json.decode(content, type=_Record)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.model == DIRECTORY or record.model in record.files else None

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        locks = self.directory / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write(f"Waiting for another process that fetches {name}\n")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def default_store() -> ModelStore:
    """The store in the user's cache."""
    return ModelStore(env.cache_home() / "models")


def entry_name(kind: str, source: str) -> str:
    """A folder name for a source: readable, and unique by a digest."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", source).strip("-")[-60:].strip("-").lower()
    return f"{kind}-{slug}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def checked_sha256(text: str) -> str:
    """A hex sha256 as people give it. Raises ConfigError."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ConfigError(f"'{text}' is not a sha256 (64 hexadecimal digits).")
    return text.lower()


def _check_model(files: Path, model: str, source: str) -> None:
    if model == DIRECTORY:
        if not is_model_directory(path.name for path in files.iterdir()):
            raise DownloadError(f"{source} holds no config.json with safetensors files.")
        return
    with (files / model).open("rb") as file:
        if file.read(4) != b"GGUF":
            raise DownloadError(f"{source} is not a GGUF file.")


def _describe(files: Path) -> Iterator[tuple[str, _File]]:
    for path in sorted(files.rglob("*")):
        if path.is_file() and path.name != RECORD:
            yield str(path.relative_to(files)), _File(path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
