"""Hears an answer while it is sent, without looking at it: a list of chunks, up to a bound."""

from typing import Any

from msgspec.structs import replace

from headrace.fleet.cache.answers import Answer, read_answer
from headrace.fleet.cache.keys import Question


class Recorder:
    """Feed it what the client is sent (OpenAI-shaped, comments stripped), then ask for the answer once."""

    def __init__(self, question: Question, max_bytes: int) -> None:
        self._question = question
        self._max = max_bytes
        self._chunks: list[bytes] = []
        self._size = 0
        self.is_too_large = False
        self.usage: dict[str, Any] | None = None
        """OpenAI's usage object, if it was told beside the answer."""

    def feed(self, chunk: bytes) -> None:
        """Keep the bytes; all are let go once they are too many."""
        if self.is_too_large:
            return
        self._size += len(chunk)
        if self._size > self._max:
            self.is_too_large = True
            self._chunks.clear()
            return
        self._chunks.append(chunk)

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
