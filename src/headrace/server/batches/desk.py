"""What the routes of files and batches ask for: the disk, its bounds, and the runner."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from headrace.api.batches import Batch, BatchRequest
from headrace.api.files import FileObject
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, OverloadedError
from headrace.server.admission import Admission
from headrace.server.batches import files, records
from headrace.server.batches.disk import Disk
from headrace.server.batches.pages import Page, Window
from headrace.server.batches.runner import BatchRunner
from headrace.server.batches.upload import Form, receive_file
from headrace.web.asgi import App, Receive, Scope
from headrace.web.keys import KeyRing

#: Files that may arrive at once: each takes memory for a piece of it.
MAX_UPLOADS: Final = 16
#: Routes whose requests a batch may hold, where they are served.
BATCHABLE: Final = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
        "/v1/rerank", "/v1/score",
    }
)  # fmt: skip
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW: Final = 30 * 86_400
_MIN_EXPIRY: Final = 3600


class BatchDesk:
    """Files and batches of one server."""

    def __init__(
        self,
        directory: str,
        config: ServerConfig,
        clock: Clock,
        admission: Admission,
        keys: KeyRing,
    ) -> None:
        """Raises ConfigError where the directory cannot be used."""
        self.disk: Final = Disk(directory)
        self._config = config
        self._clock = clock
        self._num_arriving = 0
        self._arriving_bytes = 0
        self._runner = BatchRunner(self.disk, config, clock, admission, keys)
        self._task: asyncio.Task[None] | None = None
        self.endpoints: frozenset[str] = frozenset()
        """Routes that batches may be for."""

    def bind(self, app: App, paths: frozenset[str]) -> None:
        """Who answers the requests, and on which paths."""
        self._runner.app = app
        self.endpoints = paths & BATCHABLE

    # -- its life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or go on with what an earlier process left."""
        self._task = asyncio.create_task(self._runner.run(), name="batches")

    async def stop(self) -> None:
        """Nothing of a batch runs any more; what was begun is begun again by the next process."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def close(self) -> None:
        """Stop, and give the directory back."""
        await self.stop()
        await asyncio.to_thread(self.disk.close)

    # -- files --------------------------------------------------------------------------------------

    async def take_file(self, scope: Scope, receive: Receive, owner: bytes) -> FileObject | None:
        """Keep a file that is sent; None when its sender left. Raises for what it is, and when all is full."""
        file_id = f"file-{secrets.token_hex(12)}"
        arriving = self.disk.upload(file_id)
        with self._arrival(await self._room()) as room:
            try:
                bound = min(room, self._config.batches.max_file_bytes)
                form = await receive_file(scope, receive, arriving, bound)
                if form is None:
                    return None
                file = await self._describe(file_id, form)
                await self.disk.run(_keep, file, owner)
            finally:
                await asyncio.to_thread(arriving.unlink, missing_ok=True)
        return file

    async def files(self, owner: bytes, window: Window, purpose: str | None) -> Page[FileObject]:
        """Files of an owner, perhaps of one purpose only. Raises BadRequestError for an unknown `after`."""
        return await self.disk.run(files.page, owner, window, purpose)

    async def file(self, file_id: str, owner: bytes) -> FileObject:
        """Raises NotFoundError, also for what belongs to another key."""
        return await self.disk.run(files.get, file_id, owner)

    async def delete_file(self, file_id: str, owner: bytes) -> None:
        """Raises NotFoundError, and BadRequestError while a batch reads it."""
        await self.disk.run(files.delete, file_id, owner)

    async def _room(self) -> int:
        """Bytes that there are for one more file. Raises OverloadedError."""
        size, count = await self.disk.run(files.room)
        limits = self._config.batches
        if self._num_arriving >= MAX_UPLOADS:
            raise OverloadedError(f"{self._num_arriving} files are arriving; try again later.")
        if count + self._num_arriving >= limits.max_files:
            raise OverloadedError(
                f"{count} files are kept (max_files); delete some.", retry_after=60.0
            )
        room = limits.batch_storage - size - self._arriving_bytes
        if room <= 0:
            raise OverloadedError(
                f"All files together have {size} bytes (batch_storage); delete some.",
                retry_after=60.0,
            )
        return room

    @contextmanager
    def _arrival(self, room: int) -> Iterator[int]:
        # The whole bound is set aside: a form does not say how large its file is.
        taken = min(room, self._config.batches.max_file_bytes)
        self._num_arriving += 1
        self._arriving_bytes += taken
        try:
            yield taken
        finally:
            self._num_arriving -= 1
            self._arriving_bytes -= taken

    async def _describe(self, file_id: str, form: Form) -> FileObject:
        if form.get("purpose") != "batch":
            raise BadRequestError(
                "'purpose' must be 'batch': other files have no use here.",
                param="purpose",
                code=None if "purpose" in form else "missing_required_parameter",
            )
        now = int(self._clock.wall())
        size = await asyncio.to_thread(lambda: self.disk.upload(file_id).stat().st_size)
        return FileObject(
            id=file_id,
            bytes=size,
            created_at=now,
            expires_at=now + self._expiry(form),
            filename=form.filename or "file",
            purpose="batch",
        )

    def _expiry(self, form: Form) -> int:
        retention = int(self._config.batches.batch_retention)
        text = form.get("expires_after[seconds]")
        if text is None:
            return retention
        if form.get("expires_after[anchor]", "created_at") != "created_at":
            raise BadRequestError(
                "'expires_after.anchor' must be 'created_at'.", param="expires_after.anchor"
            )
        is_number = text.isascii() and text.isdecimal() and len(text) < 10
        if not is_number or not _MIN_EXPIRY <= int(text) <= MAX_WINDOW:
            raise BadRequestError(
                f"'expires_after.seconds' must be a whole number from {_MIN_EXPIRY} to {MAX_WINDOW}.",
                param="expires_after.seconds",
            )
        return min(retention, int(text))

    # -- batches ------------------------------------------------------------------------------------

    async def create(self, wire: BatchRequest, owner: bytes) -> Batch:
        """Take a batch in. Raises BadRequestError, NotFoundError for its file, OverloadedError."""
        if wire.endpoint not in self.endpoints:
            raise BadRequestError(
                f"'endpoint' must be one of {', '.join(sorted(self.endpoints))}.", param="endpoint"
            )
        window = window_seconds(wire.completion_window)
        now = int(self._clock.wall())
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            endpoint=wire.endpoint,
            input_file_id=wire.input_file_id,
            completion_window=wire.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + window,
            metadata=wire.metadata,
        )
        after = wire.output_expires_after
        retention = None if after is None else after.seconds
        most = self._config.batches.max_batches
        await self.disk.run(records.insert, batch, owner, retention, most)
        self._runner.wake()
        return batch

    async def batches(self, owner: bytes, window: Window) -> Page[Batch]:
        """Batches of an owner. Raises BadRequestError for an unknown `after`."""
        return await self.disk.run(records.page, owner, window)

    async def batch(self, batch_id: str, owner: bytes) -> Batch:
        """Raises NotFoundError, also for what belongs to another key."""
        return await self.disk.run(records.get, batch_id, owner)

    async def cancel(self, batch_id: str, owner: bytes) -> Batch:
        """Ask for the end of a batch. Raises NotFoundError."""
        batch = await self.disk.run(records.cancel, batch_id, owner, int(self._clock.wall()))
        self._runner.wake()
        return batch


def window_seconds(text: str) -> int:
    """Of a `completion_window`. Raises BadRequestError."""
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 1 <= seconds <= MAX_WINDOW:
        raise BadRequestError(
            "'completion_window' must be a time from 1s to 30d, such as 24h.",
            param="completion_window",
        )
    return seconds


def _keep(disk: Disk, file: FileObject, owner: bytes) -> None:
    disk.publish(file.id)
    files.insert(disk, file, owner)
