"""Recorded requests: when each came, how long it was, and which prefixes it shared.

Two public formats are read.
  Mooncake JSONL: timestamp (ms from the start), input_length, output_length, hash_ids (one id per block
      of 512 prompt tokens; equal ids mean equal blocks).
  Azure CSV: TIMESTAMP (a date), ContextTokens, GeneratedTokens.
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from headrace.core.errors import ConfigError

BLOCK_TOKENS = 512
"""Prompt tokens that one Mooncake hash id stands for."""


class TraceRow(Struct, frozen=True):
    """One recorded request."""

    at: float
    """Seconds after the first request."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of its prompt's blocks; () if the trace does not say."""


class _MooncakeRow(Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=0)]
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path, limit: int = 0) -> list[TraceRow]:
    """The first `limit` rows (0: all), by time. Raises ConfigError that names the file and the line."""
    read = _azure if path.suffix.lower() == ".csv" else _mooncake
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(islice(read(path, file), limit or None))
    except OSError as error:
        raise ConfigError(f"The trace {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The trace {path} is not text.") from None
    if not rows:
        raise ConfigError(f"The trace {path} has no requests.")
    start = min(row.at for row in rows)
    shifted = [msgspec.structs.replace(row, at=row.at - start) for row in rows]
    return sorted(shifted, key=lambda row: row.at)


def _mooncake(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"Line {number} of the trace {path} is not usable: {error}."
            ) from None
        yield TraceRow(row.timestamp / 1000.0, row.input_length, row.output_length, row.hash_ids)


def _azure(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            # Seven digits of a second are recorded; a datetime holds six.
            when = datetime.fromisoformat(row["TIMESTAMP"][:26])
            lengths = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"Line {number} of the trace {path} is not usable "
                f"(TIMESTAMP,ContextTokens,GeneratedTokens is wanted): {error}."
            ) from None
        yield TraceRow((when - datetime(1970, 1, 1)).total_seconds(), *lengths)
