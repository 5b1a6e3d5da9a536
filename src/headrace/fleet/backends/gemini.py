"""Answers of generateContent and streamGenerateContent, told in OpenAI's words."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.fleet.backends import reading
from headrace.fleet.backends.refusals import refusal
from headrace.fleet.backends.telling import Teller, usage_of
from headrace.fleet.backends.translating import FAILED, WRONG, SseReader

_ENDS: Final[Mapping[str, str]] = {
    "STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter", "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter", "PROHIBITED_CONTENT": "content_filter", "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter", "LANGUAGE": "content_filter", "MODEL_ARMOR": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter", "IMAGE_RECITATION": "content_filter",
    "MALFORMED_FUNCTION_CALL": FAILED, "UNEXPECTED_TOOL_CALL": FAILED, "TOO_MANY_TOOL_CALLS": FAILED,
    "MALFORMED_RESPONSE": FAILED, "MISSING_THOUGHT_SIGNATURE": WRONG, "OTHER": FAILED, "IMAGE_OTHER": FAILED,
    "NO_IMAGE": FAILED,
}  # fmt: skip

_CALLED: Final = {**_ENDS, "STOP": "tool_calls"}


class CandidateReader(SseReader):
    """A stream is made of objects like the whole one. It has no end marker: it is complete when every candidate has
    ended and the body has.
    """

    def __init__(self, teller: Teller, *, is_stream: bool, request_id: str) -> None:
        super().__init__(teller, is_stream=is_stream)
        self._request_id = request_id
        self._num_calls: dict[int, int] = {}
        self._ends: dict[int, str | None] = {}

    def _whole(self, value: dict[str, Any]) -> bytes:
        return self._event(value) + self._closed()

    def _event(self, value: dict[str, Any]) -> bytes:
        error = reading.table(value.get("error"))
        if error:
            status = reading.count(error.get("code")) or 500
            self.refusal = refusal(max(400, status), reading.text(error.get("message")))
            return b""
        said: list[bytes] = []
        for candidate in reading.tables(value.get("candidates")):
            index = reading.count(candidate.get("index")) or 0
            self._ends.setdefault(index, None)
            content = reading.table(candidate.get("content"))
            said += [self._part(index, part) for part in reading.tables(content.get("parts"))]
            reason = reading.text(candidate.get("finishReason"))
            if reason and reason != "FINISH_REASON_UNSPECIFIED":
                self._ends[index] = reason
                if _ENDS.get(reason) in (FAILED, WRONG):
                    self._fail(reason, _ENDS)
        if reading.table(value.get("promptFeedback")).get("blockReason"):
            self._ends.setdefault(0, "SAFETY")
        self._count(reading.table(value.get("usageMetadata")))
        return b"".join(said)

    def _closed(self) -> bytes:
        if not self._ends or None in self._ends.values() or not self._parser.is_idle:
            return b""
        if self.refusal is not None:
            return b""
        self.is_complete = True
        said = [
            # One that was cut off or blocked behind a call did not end with it.
            self._finish(index, reason or "", _CALLED if index in self._num_calls else _ENDS)
            for index, reason in sorted(self._ends.items())
        ]
        return b"".join(said) + self._tell.end(self.usage)

    def _part(self, index: int, part: dict[str, Any]) -> bytes:
        text = reading.text(part.get("text"))
        if part.get("thought") is True:
            return self._tell.reasoning(index, text)
        call = reading.table(part.get("functionCall"))
        if not call:
            return self._tell.text(index, text)
        number = self._num_calls.get(index, 0)
        self._num_calls[index] = number + 1
        call_id = reading.text(call.get("id")) or f"call_{self._request_id}_{index}_{number}"
        signature = reading.text(part.get("thoughtSignature"))
        extra = {"google": {"thought_signature": signature}} if signature else None
        arguments = msgspec.json.encode(call.get("args") or {}).decode()
        return self._tell.call(
            index, number, call_id, reading.text(call.get("name")), extra
        ) + self._tell.arguments(index, number, arguments)

    def _count(self, usage: dict[str, Any]) -> None:
        prompt = reading.count(usage.get("promptTokenCount"))
        if prompt is None:
            return
        made = reading.count(usage.get("candidatesTokenCount")) or 0
        thought = reading.count(usage.get("thoughtsTokenCount")) or 0
        cached = reading.count(usage.get("cachedContentTokenCount")) or 0
        self.usage = usage_of(prompt, made + thought, cached)
