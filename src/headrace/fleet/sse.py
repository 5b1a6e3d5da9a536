"""Server-sent events, read byte by byte: any cut of the bytes gives the same events.

Written from the WHATWG HTML standard, section 9.2.6. Lines end with LF, CR or CRLF; an empty line ends an event; a
line that begins with a colon is a comment. Fields other than `event` and `data` are skipped.
"""

from typing import Final

from msgspec import Struct

from headrace.core.errors import HeadraceError

DONE: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"


class StreamError(HeadraceError):
    """What a replica sends is no stream of events, or an event of it is longer than is kept."""


class Event(Struct, frozen=True):
    """One event, or comments alone where `data` is None."""

    data: bytes | None
    """Its data lines, joined by LF."""
    name: bytes = b""
    comments: tuple[bytes, ...] = ()
    """Lines with a colon before it, without the colon and one space behind it."""

    @property
    def is_end(self) -> bool:
        """OpenAI's end marker."""
        return self.data == DONE


class EventParser:
    """Takes chunks, gives events. Holds at most `max_event_bytes` of one that has not ended."""

    def __init__(self, max_event_bytes: int = 8 * 1024 * 1024) -> None:
        self._max = max_event_bytes
        self._tail = b""
        self._held = 0
        self._data: list[bytes] = []
        self._comments: list[bytes] = []
        self._name = b""
        self._skip_lf = False
        self._is_first = True

    @property
    def is_idle(self) -> bool:
        """Nothing is waiting for its end: the stream may stop here without a piece being lost."""
        return not (self._tail or self._data or self._comments)

    def feed(self, chunk: bytes) -> list[Event]:
        """Events that end in `chunk`. Raises StreamError when one grows too long."""
        if self._skip_lf and chunk:
            # The CR before ended the line already.
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        if not chunk:
            return []
        lines = (self._tail + chunk).splitlines(keepends=True)
        self._tail = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._skip_lf = chunk.endswith(b"\r")
        events: list[Event] = []
        for line in lines:
            self._line(line.rstrip(b"\r\n"), events)
        if self._held + len(self._tail) > self._max:
            raise StreamError(f"An event of the stream is longer than {self._max} bytes.")
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events)
            return
        self._held += len(line)
        if self._held > self._max:
            raise StreamError(f"An event of the stream is longer than {self._max} bytes.")
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not field:
            self._comments.append(value)
        elif field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(Event(data, self._name, tuple(self._comments)))
        elif self._comments:
            events.append(Event(None, b"", tuple(self._comments)))
        self._data, self._comments, self._name, self._held = [], [], b"", 0


def parse(stream: bytes) -> list[Event]:
    """The events of a whole stream."""
    return EventParser(max_event_bytes=len(stream) + 1).feed(stream)
