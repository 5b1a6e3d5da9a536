"""What the readers of translated answers have in common: bytes in, one of two forms, a state that says how it ended."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from headrace.api.usage import Usage
from headrace.fleet.backends import reading
from headrace.fleet.backends.refusals import refusal
from headrace.fleet.backends.telling import Teller
from headrace.fleet.backends.values import Refusal
from headrace.fleet.sse import EventParser, StreamError

#: A whole answer that is translated may be as large as this.
MAX_WHOLE_BYTES: Final = 64 * 1024 * 1024
#: Stands in a table of ends for those that say that the model failed.
FAILED: Final = "error"
#: Stands there for those that say that the request was wrong.
WRONG: Final = "wrong"
#: What an end is told as that nobody has heard of: in OpenAI's words, that something may be missing.
UNKNOWN: Final = "content_filter"
_MAX_WORD: Final = 100


class Reader(ABC):
    """An `AnswerReader` that says things by a teller. Subclasses give meaning to values."""

    def __init__(self, teller: Teller, *, is_stream: bool) -> None:
        """`is_stream`: of what is read; what is written is the teller's affair."""
        self._tell = teller
        self._is_stream = is_stream
        self._body: list[bytes] = []
        self._size = 0
        self.content_type = teller.content_type
        self.usage: Usage | None = None
        self.refusal: Refusal | None = None
        self.is_complete = False
        self.is_cut = False

    def feed(self, chunk: bytes) -> bytes:
        """OpenAI-shaped bytes for these; nothing more is read once the answer is cut."""
        if self.refusal is not None or self.is_complete or self.is_cut:
            return b""
        if self._is_stream:
            return self._events(chunk)
        self._size += len(chunk)
        if self._size > MAX_WHOLE_BYTES:
            raise StreamError(f"The answer is longer than {MAX_WHOLE_BYTES} bytes.")
        self._body.append(chunk)
        return b""

    def finish(self) -> bytes:
        """The rest."""
        if self.refusal is not None or self.is_complete:
            return b""
        if self._is_stream:
            return self._closed()
        value = reading.decode(b"".join(self._body))
        if not isinstance(value, dict):
            raise StreamError("The answer is no JSON object.")
        return self._whole(value)

    @abstractmethod
    def _events(self, chunk: bytes) -> bytes:
        """What a piece of a stream says."""

    def _closed(self) -> bytes:
        """A stream's body has ended; most protocols have said their end before."""
        return b""

    def _finish(self, index: int, word: str, ends: Mapping[str, str]) -> bytes:
        """A choice has ended for this reason; `ends` has OpenAI's words for the server's. One that is not there is told
        beside ours, which then never says that all is well. Raises StreamError where no reason is given.
        """
        if not word:
            raise StreamError("An answer has ended without a reason.")
        reason = ends.get(word)
        if reason in (FAILED, WRONG):
            self._fail(word, ends)
            return b""
        if reason is None:
            return self._tell.finish(index, UNKNOWN, word[:_MAX_WORD])
        return self._tell.finish(index, reason)

    def _fail(self, word: str, ends: Mapping[str, str]) -> None:
        """The model could not do it, and says so by how it ended: an error, so that nobody takes it for an answer. A request
        brings this about as easily as the server does.
        """
        said = f"The model ended its answer with '{word[:_MAX_WORD]}'."
        is_wrong = ends.get(word) == WRONG
        self.refusal = refusal(400 if is_wrong else 502, said, is_of_model=not is_wrong)

    def _whole(self, value: dict[str, Any]) -> bytes:
        """What an answer in one piece says; protocols that are always read as streams have none."""
        raise StreamError("The answer is in one piece, where only streams are read.")


class SseReader(Reader):
    """Of streams of server-sent events with JSON objects."""

    def __init__(self, teller: Teller, *, is_stream: bool) -> None:
        super().__init__(teller, is_stream=is_stream)
        self._parser = EventParser()

    def _events(self, chunk: bytes) -> bytes:
        said: list[bytes] = []
        for event in self._parser.feed(chunk):
            if event.data is None or event.is_end:
                continue
            value = reading.decode(event.data)
            if not isinstance(value, dict):
                raise StreamError("An event of the stream is no JSON object.")
            said.append(self._event(value))
            if self.refusal is not None or self.is_complete or self.is_cut:
                break
        return b"".join(said)

    @abstractmethod
    def _event(self, value: dict[str, Any]) -> bytes:
        """What one event says."""
