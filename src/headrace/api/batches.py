"""`/v1/batches`, as OpenAI has it, and the lines of its files."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

MAX_METADATA = 16
BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=MAX_METADATA),
]


class ExpiresAfter(Struct, frozen=True, kw_only=True):
    """When a file is to be deleted."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Annotated[str, Meta(max_length=128)]
    """The route that all lines are for, such as /v1/chat/completions."""
    completion_window: Annotated[str, Meta(max_length=16)]
    """Time after which what has not been answered is given up: 24h, or any other from 1s to 30d."""
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchFault(Struct, frozen=True, kw_only=True):
    """Why a batch was not begun."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Of the input file; the first is 1."""


class BatchFaults(Struct, frozen=True, kw_only=True):
    """All that was found, up to a bound."""

    object: Literal["list"] = "list"
    data: list[BatchFault]


class BatchCounts(Struct, frozen=True, kw_only=True):
    """How far a batch is."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """One batch. Times are seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = BatchCounts()
    metadata: dict[str, str] | None = None


class BatchList(Struct, frozen=True, kw_only=True):
    """A page of batches, the youngest first."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class InputLine(Struct, frozen=True, kw_only=True):
    """A line of an input file."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class LineResponse(Struct, frozen=True, kw_only=True):
    """What the route answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFault(Struct, frozen=True, kw_only=True):
    """Why there is no answer."""

    code: str
    message: str


class OutputLine(Struct, frozen=True, kw_only=True):
    """A line of an output file or, where the status is none of 2xx or there is no answer, of an error file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineFault | None = None
