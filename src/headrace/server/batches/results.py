"""The files that a batch ends with, made of the answers in the database."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Final

import msgspec
from msgspec import structs

from headrace.api.batches import Batch, LineFault, OutputLine
from headrace.api.files import FileObject
from headrace.server.batches import files, records
from headrace.server.batches.disk import Disk
from headrace.server.batches.lines import Place, read_line
from headrace.server.batches.records import StoredBatch

#: Why a request has no answer, by the end of its batch.
_WHY: Final = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was answered."),
    "expired": (
        "batch_expired",
        "The batch's completion window ended before this request was answered.",
    ),
    "completed": ("internal_error", "This request has no answer."),
}


def request_id(batch_id: str, number: int) -> str:
    """The id of a line's request: the same each time it is tried."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def finish(disk: Disk, stored: StoredBatch, now: int, retention: int) -> Batch:
    """Write the output and the error file and end the batch. May be done again after it was cut short."""
    batch, verdict = stored.batch, stored.verdict or "completed"
    ids = {True: f"file-{batch.id}-output", False: f"file-{batch.id}-errors"}
    made: dict[bool, FileObject] = {}
    with ExitStack() as stack:
        opened: dict[bool, IO[bytes]] = {}
        for is_ok, line in _lines(disk, batch, verdict):
            if is_ok not in opened:
                opened[is_ok] = stack.enter_context(disk.upload(ids[is_ok]).open("wb"))
            opened[is_ok].write(line + b"\n")
    for is_ok in opened:
        size = disk.publish(ids[is_ok])
        made[is_ok] = FileObject(
            id=ids[is_ok],
            bytes=size,
            created_at=now,
            expires_at=now + (stored.retention or retention),
            filename=f"{batch.id}_{'output' if is_ok else 'error'}.jsonl",
            purpose="batch_output",
        )
        files.insert(disk, made[is_ok], stored.owner)
    batch = structs.replace(
        batch,
        output_file_id=made[True].id if True in made else None,
        error_file_id=made[False].id if False in made else None,
    )
    batch = records.end_of(batch, verdict, now)
    records.close(disk, batch)
    return batch


def _lines(disk: Disk, batch: Batch, verdict: str) -> Iterator[tuple[bool, bytes]]:
    """(whether it belongs to the output, the line), in the order of the input file."""
    rows = disk.db.execute(
        "SELECT number, offset, length, is_ok, answer FROM lines WHERE batch_id = ? ORDER BY number",
        (batch.id,),
    )
    code, message = _WHY[verdict]
    path = disk.content(batch.input_file_id)
    for number, offset, length, is_ok, answer in rows:
        if answer is not None:
            yield bool(is_ok), answer
            continue
        missed = OutputLine(
            id=request_id(batch.id, number),
            custom_id=read_line(path, Place(number, offset, length)).custom_id,
            error=LineFault(code=code, message=message),
        )
        yield False, msgspec.json.encode(missed)
