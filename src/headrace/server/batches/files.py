"""Files in the database. Each function is given to `Disk.run`: one transaction on the disk's thread."""

from typing import Final

import msgspec

from headrace.api.files import FileObject
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.server.batches.disk import Disk
from headrace.server.batches.pages import Page, Window, page_of

#: A batch of one of these still reads its file.
_READING: Final = ("validating", "in_progress", "cancelling", "finalizing")


def insert(disk: Disk, file: FileObject, owner: bytes) -> None:
    """A file whose content is in its place."""
    disk.db.execute(
        "INSERT INTO files (id, owner, purpose, bytes, expires_at, record) VALUES (?, ?, ?, ?, ?, ?)",
        (file.id, owner, file.purpose, file.bytes, file.expires_at, msgspec.json.encode(file)),
    )


def get(disk: Disk, file_id: str, owner: bytes) -> FileObject:
    """Raises NotFoundError, also for what belongs to another key."""
    row = disk.db.execute(
        "SELECT record FROM files WHERE id = ? AND owner = ?", (file_id, owner)
    ).fetchone()
    if row is None:
        raise NotFoundError("There is no such file.")
    return msgspec.json.decode(row[0], type=FileObject)


def page(disk: Disk, owner: bytes, window: Window, purpose: str | None) -> Page[FileObject]:
    """Files of an owner, perhaps of one purpose only. Raises BadRequestError for an unknown `after`."""
    only = "" if purpose is None else "AND purpose = ?"
    values = (owner,) if purpose is None else (owner, purpose)
    rows, has_more = page_of(disk.db, "record", f"files WHERE owner = ? {only}", values, window)
    return Page([msgspec.json.decode(r[0], type=FileObject) for r in rows], has_more)


def delete(disk: Disk, file_id: str, owner: bytes) -> None:
    """Raises NotFoundError, and BadRequestError while a batch reads it."""
    get(disk, file_id, owner)
    if is_in_use(disk, file_id):
        raise BadRequestError("A batch that has not ended reads this file.", code="file_in_use")
    remove(disk, file_id)


def remove(disk: Disk, file_id: str) -> None:
    """The row first: content without a row is swept, a row without content would be a lie."""
    disk.db.execute("DELETE FROM files WHERE id = ?", (file_id,))
    disk.db.commit()
    disk.content(file_id).unlink(missing_ok=True)


def is_in_use(disk: Disk, file_id: str) -> bool:
    """A batch that has not ended reads it."""
    rows = disk.db.execute(
        f"SELECT json_extract(record, '$.input_file_id') FROM batches WHERE status IN {_READING}"
    )
    return any(name == file_id for (name,) in rows)


def room(disk: Disk) -> tuple[int, int]:
    """(bytes that all files and answers take, number of files)."""
    (size, count) = disk.db.execute("SELECT total(bytes), count(*) FROM files").fetchone()
    (answers,) = disk.db.execute("SELECT total(answer_bytes) FROM batches").fetchone()
    return int(size + answers), count


def sweep(disk: Disk, now: int) -> None:
    """Delete what has expired, and contents that belong to nothing."""
    due = disk.db.execute("SELECT id FROM files WHERE expires_at <= ?", (now,)).fetchall()
    for (file_id,) in due:
        if not is_in_use(disk, file_id):
            remove(disk, file_id)


def sweep_strays(disk: Disk) -> None:
    """At the start: contents whose row never came, or has gone already."""
    known = {file_id for (file_id,) in disk.db.execute("SELECT id FROM files")}
    for content in (disk.path / "files").iterdir():
        if content.name not in known:
            content.unlink()
