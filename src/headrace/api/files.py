"""`/v1/files`, as OpenAI has it."""

from typing import Literal

from msgspec import Struct


class FileObject(Struct, frozen=True, kw_only=True):
    """A file that is kept here."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    """Seconds since 1970, as all times here."""
    expires_at: int | None = None
    filename: str
    purpose: str
    """batch for what was sent, batch_output for what batches made."""
    status: Literal["processed"] = "processed"


class FileList(Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class FileDeleted(Struct, frozen=True, kw_only=True):
    """The file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
