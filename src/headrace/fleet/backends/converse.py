"""Answers of Bedrock's Converse and ConverseStream, told in OpenAI's words."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.fleet.backends import reading
from headrace.fleet.backends.eventstream import Frame, FrameParser
from headrace.fleet.backends.refusals import refusal
from headrace.fleet.backends.telling import Teller, usage_of
from headrace.fleet.backends.translating import FAILED, Reader
from headrace.fleet.sse import StreamError

_ENDS: Final[Mapping[str, str]] = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    "model_context_window_exceeded": "length", "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter", "malformed_model_output": FAILED, "malformed_tool_use": FAILED,
}  # fmt: skip
_EXCEPTIONS: Final[Mapping[str, int]] = {
    "throttlingException": 429, "serviceUnavailableException": 503, "validationException": 400,
    "modelTimeoutException": 504, "modelStreamErrorException": 502, "internalServerException": 500,
}  # fmt: skip


class ConverseReader(Reader):
    """The last event is `metadata`, behind `messageStop`; without it there is no usage."""

    def __init__(self, teller: Teller, *, is_stream: bool) -> None:
        super().__init__(teller, is_stream=is_stream)
        self._parser = FrameParser()
        self._calls: dict[int, int] = {}
        self._has_stopped = False

    def _whole(self, value: dict[str, Any]) -> bytes:
        message = reading.table(reading.table(value.get("output")).get("message"))
        said: list[bytes] = []
        for number, block in enumerate(reading.tables(message.get("content"))):
            said.append(self._tell.text(0, reading.text(block.get("text"))))
            thought = reading.table(
                reading.table(block.get("reasoningContent")).get("reasoningText")
            )
            said.append(self._tell.reasoning(0, reading.text(thought.get("text"))))
            use = reading.table(block.get("toolUse"))
            if use:
                said.append(self._start(number, use))
                text = msgspec.json.encode(use.get("input") or {}).decode()
                said.append(self._tell.arguments(0, self._calls[number], text))
        said.append(self._stop(value.get("stopReason")))
        if self.refusal is None:
            said.append(self._end(reading.table(value.get("usage"))))
        return b"".join(said)

    def _events(self, chunk: bytes) -> bytes:
        said: list[bytes] = []
        for frame in self._parser.feed(chunk):
            said.append(self._frame(frame))
            if self.refusal is not None or self.is_complete:
                break
        return b"".join(said)

    def _closed(self) -> bytes:
        if not self._has_stopped or not self._parser.is_idle:
            return b""
        self.is_complete = True
        return self._tell.end(None)

    def _frame(self, frame: Frame) -> bytes:
        value = reading.decode(frame.payload)
        if frame.headers.get(":message-type", "event") != "event":
            self._except(frame.headers, reading.table(value))
            return b""
        if not isinstance(value, dict):
            raise StreamError("An event of the stream is no JSON object.")
        number = reading.count(value.get("contentBlockIndex")) or 0
        match frame.headers.get(":event-type"):
            case "contentBlockStart":
                use = reading.table(reading.table(value.get("start")).get("toolUse"))
                return self._start(number, use) if use else b""
            case "contentBlockDelta":
                return self._delta(number, reading.table(value.get("delta")))
            case "messageStop":
                return self._stop(value.get("stopReason"))
            case "metadata":
                return self._end(reading.table(value.get("usage"))) if self._has_stopped else b""
        return b""

    def _except(self, headers: Mapping[str, str], value: dict[str, Any]) -> None:
        """An exception has a message in its payload; an error that the service does not model has headers alone."""
        name = headers.get(":exception-type") or headers.get(":error-code", "")
        # Codes of errors are names too, and begin with a capital letter.
        status = _EXCEPTIONS.get(name[:1].lower() + name[1:], 500)
        message = reading.text(value.get("message")) or headers.get(":error-message", name)
        self.refusal = refusal(status, message)

    def _start(self, number: int, use: dict[str, Any]) -> bytes:
        self._calls[number] = len(self._calls)
        call_id, name = reading.text(use.get("toolUseId")), reading.text(use.get("name"))
        return self._tell.call(0, self._calls[number], call_id, name)

    def _delta(self, number: int, delta: dict[str, Any]) -> bytes:
        use = reading.table(delta.get("toolUse"))
        if use and number in self._calls:
            return self._tell.arguments(0, self._calls[number], reading.text(use.get("input")))
        thought = reading.text(reading.table(delta.get("reasoningContent")).get("text"))
        return self._tell.text(0, reading.text(delta.get("text"))) + self._tell.reasoning(
            0, thought
        )

    def _stop(self, reason: Any) -> bytes:
        self._has_stopped = True
        return self._finish(0, reading.text(reason), _ENDS)

    def _end(self, usage: dict[str, Any]) -> bytes:
        self.is_complete = True
        fresh = reading.count(usage.get("inputTokens"))
        if fresh is not None:
            cached = reading.count(usage.get("cacheReadInputTokens")) or 0
            written = reading.count(usage.get("cacheWriteInputTokens")) or 0
            output = reading.count(usage.get("outputTokens")) or 0
            self.usage = usage_of(fresh + cached + written, output, cached)
        return self._tell.end(self.usage)
