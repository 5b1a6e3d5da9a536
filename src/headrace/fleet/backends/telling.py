"""Answers in OpenAI's shape, said piece by piece: as a stream at once, or whole at the end. Same calls for both."""

from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from headrace.api.usage import PromptTokensDetails, Usage
from headrace.fleet.backends.values import CHAT, Incoming
from headrace.web.streaming import DONE, event

JSON: Final = "application/json"
SSE: Final = "text/event-stream; charset=utf-8"


class Head(Struct, frozen=True):
    """What stands in every chunk and in the whole."""

    id: str
    created: int
    model: str
    is_chat: bool
    with_usage: bool


def head_of(call: Incoming, model: str, *, with_usage: bool) -> Head:
    """For the answer to this call."""
    is_chat = call.path == CHAT
    prefix = "chatcmpl" if is_chat else "cmpl"
    return Head(f"{prefix}-{call.request_id}", call.created, model, is_chat, with_usage)


def usage_of(prompt: int, output: int, cached: int = 0) -> Usage:
    """`prompt` counts the cached ones too."""
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )


class Teller(Protocol):
    """Each call gives the bytes that can go out now."""

    content_type: str

    def text(self, index: int, piece: str) -> bytes:
        """More of a choice's text."""
        ...

    def reasoning(self, index: int, piece: str) -> bytes:
        """More of what it thought."""
        ...

    def call(self, index: int, number: int, call_id: str, name: str, extra: Any = None) -> bytes:
        """Its `number`-th call begins; `extra` becomes `extra_content`."""
        ...

    def arguments(self, index: int, number: int, piece: str) -> bytes:
        """More of the arguments of that call, JSON as text."""
        ...

    def finish(self, index: int, reason: str, native: str = "") -> bytes:
        """The choice has ended. `native` is the server's own word, where `reason` only stands for it."""
        ...

    def end(self, usage: Usage | None) -> bytes:
        """All have."""
        ...


class StreamTeller:
    """Chunks, then usage if it is wanted, then `[DONE]`."""

    content_type = SSE

    def __init__(self, head: Head) -> None:
        self._head = head
        self._begun: set[int] = set()
        #: Calls of which no argument was told, by choice.
        self._bare: dict[int, set[int]] = {}

    def text(self, index: int, piece: str) -> bytes:
        if not self._head.is_chat:
            return self._chunk(index, {"text": piece}) if piece else b""
        return self._delta(index, {"content": piece}) if piece else b""

    def reasoning(self, index: int, piece: str) -> bytes:
        return self._delta(index, {"reasoning_content": piece}) if piece else b""

    def call(self, index: int, number: int, call_id: str, name: str, extra: Any = None) -> bytes:
        call: dict[str, Any] = {
            "index": number,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        if extra is not None:
            call["extra_content"] = extra
        self._bare.setdefault(index, set()).add(number)
        return self._delta(index, {"tool_calls": [call]})

    def arguments(self, index: int, number: int, piece: str) -> bytes:
        if not piece:
            return b""
        self._bare.get(index, set()).discard(number)
        call = {"index": number, "function": {"arguments": piece}}
        return self._delta(index, {"tool_calls": [call]})

    def finish(self, index: int, reason: str, native: str = "") -> bytes:
        more = _native(native)
        if not self._head.is_chat:
            return self._chunk(index, {"text": "", **more}, reason)
        # Clients read arguments as JSON: of a call without any they are an empty object.
        bare = [self.arguments(index, number, "{}") for number in sorted(self._bare.get(index, ()))]
        last = self._chunk(index, {"delta": {}, **more}, reason)
        return self._role(index) + b"".join(bare) + last

    def end(self, usage: Usage | None) -> bytes:
        if not self._head.with_usage:
            return DONE
        return self._event([], {"usage": usage}) + DONE

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return self._role(index) + self._chunk(index, {"delta": delta})

    def _role(self, index: int) -> bytes:
        if index in self._begun:
            return b""
        self._begun.add(index)
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def _chunk(self, index: int, part: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": index, **part, "logprobs": None, "finish_reason": reason}
        return self._event([choice], {"usage": None} if self._head.with_usage else {})

    def _event(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        head = self._head
        chunk = {
            "id": head.id,
            "object": "chat.completion.chunk" if head.is_chat else "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
            **more,
        }
        return event(msgspec.json.encode(chunk))


class _Choice:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.reason: str | None = None
        self.native = ""


class WholeTeller:
    """Nothing until `end`, then one JSON body."""

    content_type = JSON

    def __init__(self, head: Head) -> None:
        self._head = head
        self._choices: dict[int, _Choice] = {}

    def text(self, index: int, piece: str) -> bytes:
        self._choice(index).text.append(piece)
        return b""

    def reasoning(self, index: int, piece: str) -> bytes:
        self._choice(index).reasoning.append(piece)
        return b""

    def call(self, index: int, number: int, call_id: str, name: str, extra: Any = None) -> bytes:
        call: dict[str, Any] = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": []},
        }
        if extra is not None:
            call["extra_content"] = extra
        self._choice(index).calls[number] = call
        return b""

    def arguments(self, index: int, number: int, piece: str) -> bytes:
        call = self._choice(index).calls.get(number)
        if call is not None:
            call["function"]["arguments"].append(piece)
        return b""

    def finish(self, index: int, reason: str, native: str = "") -> bytes:
        choice = self._choice(index)
        choice.reason, choice.native = reason, native
        return b""

    def end(self, usage: Usage | None) -> bytes:
        head = self._head
        whole: dict[str, Any] = {
            "id": head.id,
            "object": "chat.completion" if head.is_chat else "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": [self._said(i, choice) for i, choice in sorted(self._choices.items())],
        }
        if usage is not None:
            whole["usage"] = usage
        return msgspec.json.encode(whole)

    def _choice(self, index: int) -> _Choice:
        return self._choices.setdefault(index, _Choice())

    def _said(self, index: int, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        end = {"logprobs": None, "finish_reason": choice.reason, **_native(choice.native)}
        if not self._head.is_chat:
            return {"index": index, "text": text, **end}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["content"] = text or None
            for call in choice.calls.values():
                call["function"]["arguments"] = "".join(call["function"]["arguments"]) or "{}"
            message["tool_calls"] = [choice.calls[number] for number in sorted(choice.calls)]
        return {"index": index, "message": message, **end}


def _native(word: str) -> dict[str, str]:
    return {"native_finish_reason": word} if word else {}


def teller_for(call: Incoming, head: Head) -> Teller:
    """As the client asked for it."""
    return StreamTeller(head) if call.is_stream else WholeTeller(head)
