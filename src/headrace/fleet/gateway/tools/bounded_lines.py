"""Lines of a program's output, none of them longer than a bound. Of longer ones only their ends are kept."""

import asyncio
from typing import Final, NamedTuple

#: Bytes of each end of a line that is too long.
KEPT: Final = 256
#: How many times its bound a line may have and is still left out; a longer one has no end.
MAX_FACTOR: Final = 64


class LongLine(NamedTuple):
    """What is known of a line that was left out."""

    head: bytes
    tail: bytes


class EndlessLineError(Exception):
    """Reading on would take forever."""


class BoundedLines:
    """Read one after the other. `reader` must have been made with `max_bytes` as its limit: then it holds twice that at most."""

    def __init__(self, reader: asyncio.StreamReader, max_bytes: int) -> None:
        self._reader = reader
        self._max_bytes = max_bytes

    async def next(self) -> bytes | LongLine | None:
        """None at the end of the output; what stands behind the last line end is none. Raises EndlessLineError."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError as error:
            return await self._leave_out(error.consumed)

    async def _leave_out(self, num_bytes: int) -> LongLine | None:
        part = await self._reader.readexactly(num_bytes)
        head, tail, size = part[:KEPT], part[-KEPT:], len(part)
        while True:
            try:
                part = await self._reader.readuntil(b"\n")
                return LongLine(head, (tail + part)[-KEPT:])
            except asyncio.IncompleteReadError:
                return None
            except asyncio.LimitOverrunError as error:
                part = await self._reader.readexactly(error.consumed)
            tail = (tail + part)[-KEPT:]
            size += len(part)
            if size > MAX_FACTOR * self._max_bytes:
                raise EndlessLineError
