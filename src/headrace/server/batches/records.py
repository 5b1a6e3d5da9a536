"""Batches in the database. Each function is given to `Disk.run`: one transaction on the disk's thread.

validating → in_progress → finalizing → completed, cancelled or expired; or validating → failed. A batch
that is to end has a verdict: the state it will have when its files are written. Whatever the process does in
between, a restart finds a state from which it goes on.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from headrace.api.batches import Batch, BatchCounts, BatchFault, BatchFaults, BatchStatus
from headrace.core.errors import BadRequestError, NotFoundError, OverloadedError
from headrace.server.batches import files
from headrace.server.batches.disk import Disk
from headrace.server.batches.lines import Place
from headrace.server.batches.pages import Page, Window, page_of

Verdict = Literal["completed", "cancelled", "expired"]
#: States in which there is something left to do.
OPEN: Final = ("validating", "in_progress", "cancelling", "finalizing")
_COLUMNS: Final = "record, total, completed, failed, owner, retention, verdict"


class StoredBatch(Struct, frozen=True):
    """A batch, and what clients are not told."""

    batch: Batch
    owner: bytes
    """Digest of its API key; empty where none was needed."""
    retention: int | None
    """Seconds that its output is kept, where the client said."""
    verdict: Verdict | None


def insert(disk: Disk, batch: Batch, owner: bytes, retention: int | None, max_batches: int) -> None:
    """A new one. Raises NotFoundError for its file, and OverloadedError when there are too many."""
    file = files.get(disk, batch.input_file_id, owner)
    if file.purpose != "batch":
        raise BadRequestError(
            f"The purpose of '{file.id}' is '{file.purpose}', not 'batch'.", param="input_file_id"
        )
    (count,) = disk.db.execute("SELECT count(*) FROM batches").fetchone()
    if count >= max_batches:
        raise OverloadedError(
            f"{count} batches are kept already (max_batches); ended ones go after batch_retention.",
            retry_after=60.0,
        )
    disk.db.execute(
        "INSERT INTO batches (id, owner, status, record, retention) VALUES (?, ?, ?, ?, ?)",
        (batch.id, owner, batch.status, msgspec.json.encode(batch), retention),
    )


def get(disk: Disk, batch_id: str, owner: bytes) -> Batch:
    """Raises NotFoundError, also for what belongs to another key."""
    found = find(disk, batch_id)
    if found is None or found.owner != owner:
        raise NotFoundError("There is no such batch.")
    return found.batch


def find(disk: Disk, batch_id: str) -> StoredBatch | None:
    """Whoever it belongs to."""
    row = disk.db.execute(f"SELECT {_COLUMNS} FROM batches WHERE id = ?", (batch_id,)).fetchone()
    return None if row is None else _stored(row)


def page(disk: Disk, owner: bytes, window: Window) -> Page[Batch]:
    """Batches of an owner. Raises BadRequestError for an unknown `after`."""
    rows, has_more = page_of(disk.db, _COLUMNS, "batches WHERE owner = ?", (owner,), window)
    return Page([_stored(row).batch for row in rows], has_more)


def unfinished(disk: Disk) -> list[StoredBatch]:
    """The oldest first."""
    rows = disk.db.execute(f"SELECT {_COLUMNS} FROM batches WHERE status IN {OPEN} ORDER BY seq")
    return [_stored(row) for row in rows]


def cancel(disk: Disk, batch_id: str, owner: bytes, now: int) -> Batch:
    """Ask for its end; one that is ending or has ended stays as it is. Raises NotFoundError."""
    batch = get(disk, batch_id, owner)
    if batch.status in ("validating", "in_progress"):
        batch = structs.replace(batch, status="cancelling", cancelling_at=now)
        _update(disk, batch, "cancelled")
    return batch


def begin(disk: Disk, batch_id: str, places: Sequence[Place], now: int) -> None:
    """Its file is good: these are its requests. Does nothing where it has been cancelled meanwhile."""
    found = find(disk, batch_id)
    if found is None or found.batch.status != "validating":
        return
    disk.db.execute("DELETE FROM lines WHERE batch_id = ?", (batch_id,))
    disk.db.executemany(
        "INSERT INTO lines (batch_id, number, offset, length) VALUES (?, ?, ?, ?)",
        ((batch_id, place.number, place.offset, place.length) for place in places),
    )
    disk.db.execute("UPDATE batches SET total = ? WHERE id = ?", (len(places), batch_id))
    _update(disk, structs.replace(found.batch, status="in_progress", in_progress_at=now))


def fail(disk: Disk, batch_id: str, faults: list[BatchFault], now: int) -> None:
    """Its file is no good."""
    found = find(disk, batch_id)
    if found is not None and found.batch.status == "validating":
        errors = BatchFaults(data=faults)
        _update(disk, structs.replace(found.batch, status="failed", failed_at=now, errors=errors))


def decide(disk: Disk, batch_id: str, verdict: Verdict, now: int) -> None:
    """No more of its requests are answered; what it becomes. The first verdict stands."""
    found = find(disk, batch_id)
    if found is None or found.batch.status not in OPEN:
        return
    batch = structs.replace(found.batch, status="finalizing", finalizing_at=now)
    _update(disk, batch, found.verdict or verdict)


def close(disk: Disk, batch: Batch) -> None:
    """It has ended: its files are there, its lines are no longer needed."""
    _update(disk, batch)
    disk.db.execute("DELETE FROM lines WHERE batch_id = ?", (batch.id,))
    disk.db.execute("UPDATE batches SET answer_bytes = 0 WHERE id = ?", (batch.id,))


# -- its requests -----------------------------------------------------------------------------------


def waiting(disk: Disk, batch_id: str, after: int, limit: int) -> list[Place]:
    """Requests without an answer, behind line `after`."""
    rows = disk.db.execute(
        "SELECT number, offset, length FROM lines WHERE batch_id = ? AND answer IS NULL AND number > ? "
        "ORDER BY number LIMIT ?",
        (batch_id, after, limit),
    )
    return [Place(*row) for row in rows]


def record(
    disk: Disk, batch_id: str, number: int, answer: bytes, *, is_ok: bool, max_bytes: int | None
) -> None:
    """The answer of one request, and its count. A second answer changes nothing.

    Raises OverloadedError where all files and answers would then take more than `max_bytes`.
    """
    if max_bytes is not None and files.room(disk)[0] + len(answer) > max_bytes:
        raise OverloadedError("There is no room for more answers (batch_storage).")
    done = disk.db.execute(
        "UPDATE lines SET answer = ?, is_ok = ? WHERE batch_id = ? AND number = ? AND answer IS NULL",
        (answer, is_ok, batch_id, number),
    )
    if done.rowcount:
        column = "completed" if is_ok else "failed"
        disk.db.execute(
            f"UPDATE batches SET {column} = {column} + 1, answer_bytes = answer_bytes + ? WHERE id = ?",
            (len(answer), batch_id),
        )


def sweep(disk: Disk, before: int) -> None:
    """Delete batches that were made before then and have ended."""
    disk.db.execute(
        f"DELETE FROM batches WHERE status NOT IN {OPEN} AND "
        "json_extract(record, '$.created_at') < ?",
        (before,),
    )


def _update(disk: Disk, batch: Batch, verdict: Verdict | None = None) -> None:
    disk.db.execute(
        "UPDATE batches SET status = ?, record = ?, verdict = coalesce(?, verdict) WHERE id = ?",
        (batch.status, msgspec.json.encode(batch), verdict, batch.id),
    )


def _stored(row: tuple[bytes, int, int, int, bytes, int | None, Verdict | None]) -> StoredBatch:
    record, total, completed, failed, owner, retention, verdict = row
    counts = BatchCounts(total=total, completed=completed, failed=failed)
    batch = structs.replace(msgspec.json.decode(record, type=Batch), request_counts=counts)
    return StoredBatch(batch, owner, retention, verdict)


def end_of(batch: Batch, status: BatchStatus, now: int) -> Batch:
    """The batch with its last state and the time of it."""
    return structs.replace(batch, status=status, **{f"{status}_at": now})
