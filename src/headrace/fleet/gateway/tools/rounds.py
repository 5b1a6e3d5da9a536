"""One answer of a model within a loop of chat completions: its text, the tools that it wants called, what it cost."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core.errors import BadGatewayError
from headrace.fleet.gateway.inner import InnerAnswer
from headrace.fleet.sse import EventParser, StreamError
from headrace.web.asgi import Message
from headrace.web.problems import answer_to
from headrace.web.streaming import event

#: Calls of tools as a chat completion's message has them.
Calls = list[dict[str, Any]]
UNREADABLE = "A replica's answer within the tool loop cannot be read."


class Round(Struct, frozen=True, kw_only=True):
    """What came of it."""

    text: str
    calls: Calls
    usage: Any
    finish: Any = None
    """Why it ended."""

    @property
    def is_cut(self) -> bool:
        """It was ended before it was over: the last of its calls may be a part of one."""
        return self.finish in ("length", "content_filter")


def with_choice(body: dict[str, Any], number: int, max_rounds: int) -> dict[str, Any]:
    """A round's request: what had to be called has been after the first, and the last may call nothing."""
    if "tools" not in body:
        return body
    if number == max_rounds - 1:
        return {**body, "tool_choice": "none"}
    if number and body.get("tool_choice") not in (None, "auto", "none"):
        return {**body, "tool_choice": "auto"}
    return body


def whole_round(body: bytes) -> Round:
    """A chat completion in one piece. Raises BadGatewayError."""
    try:
        answer: Any = msgspec.json.decode(body)
        message = answer["choices"][0]["message"]
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        text = message.get("content") or ""
        finish = answer["choices"][0].get("finish_reason")
        return Round(text=text, calls=calls, usage=answer.get("usage"), finish=finish)
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, RecursionError):
        raise BadGatewayError(UNREADABLE) from None


def without_calls(choice: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A choice of a whole answer whose calls of these tools nobody makes any more."""
    message = dict(choice["message"])
    left = [c for c in message.pop("tool_calls", None) or () if c["function"]["name"] not in names]
    if left:
        return {**choice, "message": {**message, "tool_calls": left}}
    return {**choice, "message": message, "finish_reason": _ended(choice.get("finish_reason"))}


class StreamRound:
    """Hears one streamed answer: text goes on at once, calls and the end are held back."""

    def __init__(
        self, tell: Callable[[bytes], Awaitable[None]], name: dict[str, Any], *, is_first: bool
    ) -> None:
        """`name` is `id` and `created` of the whole answer: the first round fills it in."""
        self._tell = tell
        self._name = name
        self._is_first = is_first
        self._parser = EventParser()
        self._status = 200
        self._refused: list[bytes] = []
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._head: dict[str, Any] = {}
        self._finish: dict[str, Any] | None = None
        self._usage: Any = None
        self._failure: dict[str, Any] | None = None

    @property
    def refusal(self) -> InnerAnswer | None:
        """What came instead of a stream."""
        if self._status == 200:
            return None
        return InnerAnswer(self._status, b"".join(self._refused))

    @property
    def has_failed(self) -> bool:
        """It broke off: nothing that it wants called is whole."""
        return self._failure is not None

    async def send(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        body = message.get("body", b"")
        if self._status != 200:
            self._refused.append(body)
            return
        if self.has_failed:
            return
        try:
            for found in self._parser.feed(body):
                if found.data is not None and not found.is_end:
                    await self._hear(msgspec.json.decode(found.data))
        except (msgspec.DecodeError, StreamError, AttributeError, TypeError, RecursionError):
            self._failure = {"error": answer_to(BadGatewayError(UNREADABLE)).problem}

    def finish(self) -> Round:
        """What came of it, after its end."""
        calls = [self._calls[index] for index in sorted(self._calls)]
        finish = self._finish["finish_reason"] if self._finish is not None else None
        return Round(text="".join(self._text), calls=calls, usage=self._usage, finish=finish)

    def last_events(self, dropped: Collection[str] = ()) -> bytes:
        """What was held back: calls of the client's tools (all but those of `dropped` ones), the end, a failure."""
        events = b""
        calls = [c for c in self.finish().calls if c["function"]["name"] not in dropped]
        if calls and not self.has_failed:
            delta = {"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]}
            events += self._event({"index": 0, "delta": delta, "finish_reason": None})
        if self._finish is not None:
            reason = self._finish["finish_reason"]
            events += self._event(
                {**self._finish, "finish_reason": reason if calls else _ended(reason)}
            )
        if self._failure is not None:
            events += event(msgspec.json.encode(self._failure))
        return events

    def usage_event(self, usage: dict[str, Any]) -> bytes:
        """The event with the usage of all rounds."""
        return event(msgspec.json.encode({**self._head, "choices": [], "usage": usage}))

    async def _hear(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk or chunk.get("object") == "error":
            self._failure = chunk
            return
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        if not self._name and chunk.get("id"):
            self._name |= {key: chunk[key] for key in ("id", "created") if key in chunk}
        rest = {key: value for key, value in chunk.items() if key not in ("choices", "usage")}
        self._head = {**rest, **self._name}
        for choice in chunk.get("choices") or ():
            delta = dict(choice.get("delta") or {})
            for call in delta.pop("tool_calls", None) or ():
                self._collect(call)
            if not self._is_first:
                delta.pop("role", None)
            if isinstance(delta.get("content"), str):
                self._text.append(delta["content"])
            if choice.get("finish_reason"):
                self._finish = {**choice, "delta": {}}
                self._finish.pop("logprobs", None)
            says = any(value not in (None, "") for value in delta.values())
            if says or choice.get("logprobs"):
                await self._tell(self._event({**choice, "delta": delta, "finish_reason": None}))

    def _event(self, choice: dict[str, Any]) -> bytes:
        return event(msgspec.json.encode({**self._head, "choices": [choice]}))

    def _collect(self, call: dict[str, Any]) -> None:
        index = call.get("index", 0)
        if not isinstance(index, int):
            raise TypeError("the index of a call")
        known = self._calls.setdefault(
            index,
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        known["id"] = call.get("id") or known["id"]
        function = call.get("function") or {}
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""


def _call(call: Any) -> dict[str, Any]:
    """A call whose parts are there. Raises KeyError or TypeError."""
    function = call["function"]
    arguments = function.get("arguments")
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": str(function["name"]), "arguments": arguments or ""},
    }


def _ended(reason: Any) -> Any:
    """Why an answer ended whose calls are not shown."""
    return "stop" if reason == "tool_calls" else reason
