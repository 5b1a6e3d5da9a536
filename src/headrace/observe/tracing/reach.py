"""Whether spans arrive, in our own words: one line when they do no more, one when they do again.

OpenTelemetry's exporter writes several lines for each message that is lost, in a form of its own, past our logs.
"""

import logging
import re
from typing import Final
from urllib.parse import urlsplit

#: What the exporter and its parts log to.
LIBRARY: Final = "opentelemetry.exporter"
#: Characters of its words that are told.
_MAX_CHARS: Final = 200
_CAUSE: Final = re.compile(r"\[Errno -?\d+\] ([^\"'()\[\]]+)")
#: A query, and who signs in within an address: either may be a key.
_QUERY: Final = re.compile(r"\?[^\s'\"()]*")
_USER: Final = re.compile(r"://[^\s/'\"]*@")

log = logging.getLogger("headrace.traces")


class Reach(logging.Handler):
    """Of one exporter. It keeps the library's words to itself while it listens, and tells the first as the reason."""

    def __init__(self, url: str) -> None:
        super().__init__(logging.WARNING)
        self._place = _place(url)
        self._said = ""
        self._num_lost = 0

    def listen(self) -> None:
        """From now on, until `close`."""
        library = logging.getLogger(LIBRARY)
        library.addHandler(self)
        library.propagate = False

    def close(self) -> None:
        """Part of logging.Handler: the library may write its own lines again, unless another exporter listens."""
        library = logging.getLogger(LIBRARY)
        library.removeHandler(self)
        library.propagate = not any(isinstance(each, Reach) for each in library.handlers)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Part of logging.Handler."""
        self._said = self._said or _reason(record.getMessage())

    def arrived(self) -> None:
        """A message was taken."""
        if self._num_lost:
            log.info("Traces reach %s again; %d spans were lost", self._place, self._num_lost)
        self._num_lost, self._said = 0, ""

    def lost(self, num_spans: int, reason: str = "") -> None:
        """A message was given up, for this reason or for the one that the library has said."""
        if not self._num_lost:
            said = _reason(reason) or self._said or "it does not say why"
            log.warning(
                "Traces do not reach %s: %s. Spans are lost until they do",
                self._place,
                said,
            )
        self._num_lost += num_spans
        self._said = ""


def _reason(words: str) -> str:
    cause = _CAUSE.search(words)
    said = cause[1] if cause else _USER.sub("://", _QUERY.sub("", words))
    return said[:_MAX_CHARS].strip().rstrip(".")


def _place(url: str) -> str:
    """Without a password, or a query that may hold a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "their endpoint"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
