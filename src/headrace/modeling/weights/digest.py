"""The digest of a model's weights, taken beside their conversion."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Final, Self

from headrace.core.errors import ModelLoadError

_CHUNK_BYTES: Final = 4 << 20


class ContentDigest:
    """Hex sha256 over the content of the weight files and the option that changes them.

    Files are read on a thread from the beginning of the `with` block on. Leaving the block ends the
    reading within one chunk, so that an error elsewhere does not wait for gigabytes.
    """

    def __init__(self, files: Sequence[Path], quantize: str | None) -> None:
        self._files = files
        self._quantize = quantize
        self._is_unwanted = Event()
        self._pool = ThreadPoolExecutor(1, "weights-digest")

    def __enter__(self) -> Self:
        self._future = self._pool.submit(self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_unwanted.set()
        self._pool.shutdown(wait=True)

    def result(self) -> str:
        """Wait for it. Raises ModelLoadError for a file that cannot be read to its end."""
        return self._future.result()

    def _take(self) -> str:
        total = hashlib.sha256(f"headrace weights 1 {self._quantize or 'as stored'}".encode())
        for path in self._files:
            try:
                total.update(self._digest_of(path))
            except OSError as error:
                raise ModelLoadError(f"{path} cannot be read: {error.strerror}.") from error
        return total.hexdigest()

    def _digest_of(self, path: Path) -> bytes:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        with path.open("rb", buffering=0) as file:
            while not self._is_unwanted.is_set() and (size := file.readinto(buffer)):
                digest.update(buffer[:size])
        return digest.digest()
