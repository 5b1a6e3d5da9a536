"""Texts found by meaning, in one file: sqlite-vec, by way of apsw, since many Pythons' own sqlite3 loads no extensions.

Search is exact: every vector is compared, which is fast enough for a few hundred thousand.
"""

import struct
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from headrace.core.errors import BadGatewayError, ConfigError, UnavailableError


class Hit(NamedTuple):
    """One text, and how near it is: cosine similarity."""

    text: str
    score: float


class VectorFile:
    """A file of texts and vectors, all of one length. Its calls block; each holds a lock."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Raises ConfigError for a file that cannot be used, and without the extra headrace[vectors].

        Raises UnavailableError for one that is not there yet, or has no texts, unless it `is_new`.
        """
        if find_spec("apsw") is None or find_spec("sqlite_vec") is None:
            raise ConfigError("Vector stores need the extra headrace[vectors].")
        import apsw
        import sqlite_vec

        if not is_new and not path.exists():
            raise UnavailableError(f"There is no file {path}; `headrace vectors` makes one.")
        self._lock = Lock()
        try:
            self._database: Any = apsw.Connection(str(path))
            self._database.enable_load_extension(True)
            self._database.load_extension(sqlite_vec.loadable_path())
            self._database.enable_load_extension(False)
            # Reads the file, which opening does not.
            has_texts = "SELECT 1 FROM sqlite_master WHERE name = 'texts'"
            is_empty = self._database.execute(has_texts).fetchone() is None
        except apsw.Error as error:
            raise ConfigError(f"The file {path} is no vector store: {error}.") from None
        if is_empty and not is_new:
            self._database.close()
            raise UnavailableError(
                f"The file {path} has no texts; `headrace vectors` puts them there."
            )

    def add(self, rows: Iterable[tuple[str, Sequence[float]]]) -> int:
        """Texts with their vectors; how many there were. Raises ConfigError, and keeps none, where lengths differ."""
        import apsw

        count = 0
        with self._lock:
            try:
                with self._database:
                    for text, vector in rows:
                        if not count:
                            self._database.execute(
                                "CREATE VIRTUAL TABLE IF NOT EXISTS texts USING "
                                f"vec0(vector float[{len(vector)}] distance_metric=cosine, +text text)"
                            )
                        self._database.execute(
                            "INSERT INTO texts(vector, text) VALUES (?, ?)",
                            (_packed(vector), text),
                        )
                        count += 1
            except (apsw.Error, OverflowError) as error:
                raise ConfigError(f"The vector store takes no such vector: {error}.") from None
        return count

    def nearest(self, vector: Sequence[float], top: int) -> list[Hit]:
        """The nearest texts, nearest first. Raises BadGatewayError where vectors have another length."""
        import apsw

        with self._lock:
            try:
                rows = list(
                    self._database.execute(
                        "SELECT text, distance FROM texts WHERE vector MATCH ? AND k = ? ORDER BY distance",
                        (_packed(vector), top),
                    )
                )
            except (apsw.Error, OverflowError) as error:
                raise BadGatewayError(f"The vector store cannot answer: {error}.") from None
        return [Hit(text, 1.0 - distance) for text, distance in rows]

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            self._database.close()


def _packed(vector: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)
