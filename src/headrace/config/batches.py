"""Files and batches: where they are kept, and how much of them."""

from typing import Annotated

from msgspec import Meta, Struct


class BatchConfig(Struct, frozen=True, kw_only=True):
    """`/v1/files` and `/v1/batches`."""

    batch_dir: str | None = None
    """Directory for files and batches, of this server alone; without one there are none. What clients send and
    get is kept there until it expires or is deleted."""
    batch_storage: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 4 * 1024**3
    """Bytes that all files and answers may take together."""
    max_file_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 200 * 1024**2
    """Largest file that may be sent."""
    max_files: Annotated[int, Meta(ge=1)] = 10_000
    """Files that are kept at most."""
    max_batches: Annotated[int, Meta(ge=1)] = 1000
    """Batches that are kept at most, ended ones included."""
    max_batch_lines: Annotated[int, Meta(ge=1)] = 50_000
    """Requests that one batch may have."""
    batch_concurrency: Annotated[int, Meta(ge=1)] = 16
    """Requests of batches that run at once, where nothing else wants their places."""
    batch_retention: Annotated[float, Meta(ge=3600.0, extra={"unit": "seconds"})] = 30 * 86_400.0
    """Seconds after which files and ended batches are deleted, where a client has not asked for less."""
