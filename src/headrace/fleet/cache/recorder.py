"""Hears an answer while it is sent, without looking at it: a list of chunks, up to a bound of its own and one of all."""

from typing import Any

from msgspec.structs import replace

from headrace.fleet.cache.answers import Answer, read_answer
from headrace.fleet.cache.flights import Budget
from headrace.fleet.cache.keys import Question


class Recorder:
    """Feed it what the client is sent (OpenAI-shaped, comments stripped), then ask for the answer once."""

    def __init__(self, question: Question, max_bytes: int, budget: Budget) -> None:
        """`budget` is that of all recorders; `close` it in any case."""
        self._question = question
        self._max = max_bytes
        self._budget = budget
        self._chunks: list[bytes] = []
        self._size = 0
        self.is_too_large = False
        self.usage: dict[str, Any] | None = None
        """OpenAI's usage object, if it was told beside the answer."""

    def feed(self, chunk: bytes) -> None:
        """Keep the bytes; all are let go once they are too many."""
        if self.is_too_large:
            return
        size = len(chunk)
        if self._size + size > self._max or self._budget.held + size > self._budget.max_bytes:
            self.is_too_large = True
            self.close()
            return
        self._size += size
        self._budget.held += size
        self._chunks.append(chunk)

    def close(self) -> None:
        """Let go of all."""
        self._budget.held -= self._size
        self._size = 0
        self._chunks.clear()

    def hold(self, num_bytes: int) -> None:
        """What was heard has another form now, of so many bytes, which waits to be kept: they count until `close`."""
        self._budget.held += num_bytes - self._size
        self._size = num_bytes
        self._chunks.clear()

    def answer(self, now: float) -> Answer | None:
        """What may be kept. Call it when the body has ended well; reads all bytes, so not on the event loop."""
        if self.is_too_large:
            return None
        question = self._question
        body = b"".join(self._chunks)
        answer = read_answer(question.path, body, is_stream=question.is_stream, now=now)
        if answer is None or answer.usage is not None or self.usage is None:
            return answer
        return replace(answer, usage=self.usage)
