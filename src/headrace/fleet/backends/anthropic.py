"""Anthropic's Messages API: chats translated there and back.

Written from its reference (platform.claude.com/docs/en/api/messages, streaming, errors), version 2023-06-01.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.core.errors import BadRequestError
from headrace.fleet.backends import reading
from headrace.fleet.backends.chats import ChatRequest, Image, Turn, read_chat
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.refusals import message_of, refusal, retry_after_of
from headrace.fleet.backends.telling import Teller, head_of, teller_for, usage_of
from headrace.fleet.backends.translating import SseReader
from headrace.fleet.backends.values import (
    CHAT,
    AnswerReader,
    Continuation,
    Incoming,
    Outgoing,
    Refusal,
)
from headrace.fleet.sse import StreamError

VERSION: Final = "2023-06-01"
#: It demands a bound; this is what a request gets that has none.
DEFAULT_MAX_TOKENS: Final = 4096
_TAKES: Final = ("top_k", "response_format")
_ENDS: Final[Mapping[str, str]] = {
    "end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "max_tokens": "length",
    "model_context_window_exceeded": "length", "tool_use": "tool_calls", "refusal": "content_filter",
}  # fmt: skip
_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500,
    "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip


class AnthropicBackend(OpenAIBackend):
    """Only chats. It has no health and load of its own."""

    dialect: ClassVar[Dialect] = Dialect.ANTHROPIC
    completions = Continuation.NONE

    def _auth(self, spec: ReplicaSpec) -> dict[str, str]:
        key = {"x-api-key": str(spec.api_key)} if spec.api_key else {}
        return {"anthropic-version": VERSION, **key}

    def outgoing(self, call: Incoming) -> Outgoing:
        """The chat as a message request. Raises BadRequestError."""
        if call.path == "/v1/messages":
            return super().outgoing(call)
        if call.path != CHAT:
            raise BadRequestError(f"A server of the dialect anthropic has no {call.path}.")
        body = msgspec.json.encode(_request(read_chat(call, "anthropic", _TAKES), call.is_stream))
        return Outgoing(path=self._base + "/v1/messages", body=body, headers=self._headers)

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """Its own route passes through."""
        if call.path != CHAT:
            return None
        request = read_chat(call, "anthropic", _TAKES)
        head = head_of(call, request.model, with_usage=request.with_usage)
        return MessageReader(teller_for(call, head), is_stream=call.is_stream)

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """`{"type": "error", "error": {"type", "message"}}`."""
        value = reading.table(reading.decode(body))
        return refusal(status, message_of(value, body), retry_after=retry_after_of(headers))


def _request(chat: ChatRequest, is_stream: bool) -> dict[str, Any]:
    temperature = chat.number("temperature")
    if temperature is not None and temperature > 1:
        raise BadRequestError(
            "'temperature': a server of the dialect anthropic takes at most 1.", param="temperature"
        )
    request: dict[str, Any] = {
        "model": chat.model,
        "max_tokens": chat.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": _messages(chat.turns),
        "stream": is_stream,
    }
    if chat.system:
        request["system"] = "\n\n".join(chat.system)
    if chat.stop:
        request["stop_sequences"] = chat.stop
    for name in ("temperature", "top_p", "top_k"):
        value = chat.number(name)
        if value is not None and not (name == "top_k" and value < 1):
            request[name] = value
    if chat.tools:
        request["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in chat.tools
        ]
        request["tool_choice"] = _tool_choice(chat)
    if form := _format(chat.body.get("response_format")):
        request["output_config"] = {"format": form}
    user = chat.body.get("user")
    if isinstance(user, str) and user:
        request["metadata"] = {"user_id": user}
    return request


def _tool_choice(chat: ChatRequest) -> dict[str, Any]:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    if chat.tool_choice in kinds:
        choice: dict[str, Any] = {"type": kinds[chat.tool_choice]}
    else:
        choice = {"type": "tool", "name": chat.tool_choice[1:]}
    if chat.one_call and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def _format(wanted: Any) -> dict[str, Any] | None:
    kind = reading.table(wanted).get("type", "text")
    if kind == "text":
        return None
    schema = reading.table(reading.table(wanted).get("json_schema")).get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise BadRequestError(
            "'response_format': a server of the dialect anthropic needs a json_schema.",
            param="response_format",
        )
    return {"type": "json_schema", "schema": schema}


def _messages(turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    """Roles alternate there: turns of one role are put together, and answers of tools are the user's."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role = "assistant" if turn.role == "assistant" else "user"
        blocks = _blocks(turn)
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    return messages


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    blocks = [_block(part) for part in turn.parts]
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.call_id, "content": blocks}]
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in turn.calls
    ]


def _block(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    source = (
        {"type": "base64", "media_type": part.media_type, "data": part.data}
        if part.data
        else {"type": "url", "url": part.url}
    )
    return {"type": "image", "source": source}


class MessageReader(SseReader):
    """A message, whole or as its named events; the names stand in the data too."""

    def __init__(self, teller: Teller, *, is_stream: bool) -> None:
        super().__init__(teller, is_stream=is_stream)
        self._prompt = self._cached = self._output = 0
        self._calls: dict[int, int] = {}
        self._has_stopped = False

    def _whole(self, value: dict[str, Any]) -> bytes:
        said: list[bytes] = []
        for number, block in enumerate(reading.tables(value.get("content"))):
            said.append(self._start(number, block))
            if block.get("type") == "tool_use":
                text = msgspec.json.encode(block.get("input") or {}).decode()
                said.append(self._tell.arguments(0, self._calls[number], text))
        self._count(reading.table(value.get("usage")))
        said.append(self._stop(value.get("stop_reason")))
        return b"".join(said) + self._end()

    def _event(self, value: dict[str, Any]) -> bytes:
        match value.get("type"):
            case "message_start":
                self._count(reading.table(reading.table(value.get("message")).get("usage")))
            case "content_block_start":
                block = reading.table(value.get("content_block"))
                return self._start(reading.count(value.get("index")) or 0, block)
            case "content_block_delta":
                delta = reading.table(value.get("delta"))
                return self._delta(reading.count(value.get("index")) or 0, delta)
            case "message_delta":
                self._count(reading.table(value.get("usage")))
                reason = reading.table(value.get("delta")).get("stop_reason")
                return self._stop(reason) if reason else b""
            case "message_stop":
                return self._end()
            case "error":
                error = reading.table(value.get("error"))
                status = _STATUSES.get(reading.text(error.get("type")), 500)
                self.refusal = refusal(status, reading.text(error.get("message")))
        return b""

    def _start(self, number: int, block: dict[str, Any]) -> bytes:
        match block.get("type"):
            case "tool_use":
                self._calls[number] = len(self._calls)
                call_id, name = reading.text(block.get("id")), reading.text(block.get("name"))
                return self._tell.call(0, self._calls[number], call_id, name)
            case "text":
                return self._tell.text(0, reading.text(block.get("text")))
            case "thinking":
                return self._tell.reasoning(0, reading.text(block.get("thinking")))
        return b""

    def _delta(self, number: int, delta: dict[str, Any]) -> bytes:
        match delta.get("type"):
            case "text_delta":
                return self._tell.text(0, reading.text(delta.get("text")))
            case "thinking_delta":
                return self._tell.reasoning(0, reading.text(delta.get("thinking")))
            case "input_json_delta" if number in self._calls:
                piece = reading.text(delta.get("partial_json"))
                return self._tell.arguments(0, self._calls[number], piece)
        return b""

    def _count(self, usage: dict[str, Any]) -> None:
        # Counts in a later event replace those of an earlier one.
        cached = reading.count(usage.get("cache_read_input_tokens"))
        fresh = reading.count(usage.get("input_tokens"))
        if fresh is not None:
            written = reading.count(usage.get("cache_creation_input_tokens")) or 0
            self._cached = cached or 0
            self._prompt = fresh + written + self._cached
        self._output = reading.count(usage.get("output_tokens")) or self._output

    def _stop(self, reason: Any) -> bytes:
        self._has_stopped = True
        return self._finish(0, reading.text(reason), _ENDS)

    def _end(self) -> bytes:
        if not self._has_stopped:
            raise StreamError("An answer has ended without a reason.")
        self.is_complete = True
        self.usage = usage_of(self._prompt, self._output, self._cached)
        return self._tell.end(self.usage)
