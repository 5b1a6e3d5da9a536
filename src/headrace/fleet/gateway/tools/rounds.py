"""One answer of a model within a loop: its text, the tools that it wants called, what it cost."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from headrace.fleet.gateway.inner import InnerAnswer
from headrace.fleet.sse import EventParser
from headrace.web.asgi import Message
from headrace.web.streaming import event

#: Calls of tools as a chat completion's message has them.
Calls = list[dict[str, Any]]
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class Round(Struct, frozen=True, kw_only=True):
    """What came of it."""

    text: str
    calls: Calls
    usage: dict[str, Any] | None


class Total:
    """Usage of all rounds together."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.num_rounds = 0

    def add(self, usage: dict[str, Any] | None) -> None:
        """One round more."""
        self.num_rounds += 1
        for name in _COUNTS:
            value = (usage or {}).get(name)
            self.counts[name] += value if isinstance(value, int) else 0

    def put_into(self, body: bytes) -> bytes:
        """An answer with this usage instead of its own."""
        if self.num_rounds == 1:
            return body
        answer = msgspec.json.decode(body)
        answer["usage"] = {**(answer.get("usage") or {}), **self.counts}
        return msgspec.json.encode(answer)


def whole_round(body: bytes) -> Round:
    """A chat completion in one piece."""
    answer: Any = msgspec.json.decode(body)
    choices = answer.get("choices") or [{}]
    message = choices[0].get("message") or {}
    return Round(
        text=message.get("content") or "",
        calls=[call for call in message.get("tool_calls") or () if _is_call(call)],
        usage=answer.get("usage"),
    )


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
        self._usage: dict[str, Any] | None = None

    @property
    def refusal(self) -> InnerAnswer | None:
        """What came instead of a stream."""
        if self._status == 200:
            return None
        return InnerAnswer(self._status, b"".join(self._refused))

    async def send(self, message: Message) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        body = message.get("body", b"")
        if self._status != 200:
            self._refused.append(body)
            return
        for found in self._parser.feed(body):
            if found.data is not None and not found.is_end:
                await self._hear(msgspec.json.decode(found.data))

    def finish(self) -> Round:
        """What came of it, after its end."""
        calls = [self._calls[index] for index in sorted(self._calls)]
        return Round(text="".join(self._text), calls=calls, usage=self._usage)

    def last_events(self) -> bytes:
        """What was held back: calls of the client's tools, and the end."""
        events = b""
        if self._calls:
            calls = [{"index": n, **call} for n, call in enumerate(self._calls.values())]
            choice = {"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}
            events += event(msgspec.json.encode({**self._head, "choices": [choice]}))
        if self._finish is not None:
            events += event(msgspec.json.encode({**self._head, "choices": [self._finish]}))
        return events

    def usage_chunk(self, total: Total) -> dict[str, Any]:
        """The event with the usage of all rounds."""
        usage = {**(self._usage or {}), **total.counts}
        return {**self._head, "choices": [], "usage": usage}

    async def _hear(self, chunk: dict[str, Any]) -> None:
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        if not self._name:
            self._name |= {key: chunk[key] for key in ("id", "created") if key in chunk}
        rest = {key: value for key, value in chunk.items() if key not in ("choices", "usage")}
        self._head = {**rest, **self._name}
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            for call in delta.pop("tool_calls", None) or ():
                self._collect(call)
            if not self._is_first:
                delta.pop("role", None)
            if isinstance(delta.get("content"), str):
                self._text.append(delta["content"])
            if choice.get("finish_reason"):
                self._finish = {**choice, "delta": {}}
                choice["finish_reason"] = None
            if any(value not in (None, "") for value in delta.values()):
                await self._tell(
                    event(
                        msgspec.json.encode({**self._head, "choices": [{**choice, "delta": delta}]})
                    )
                )

    def _collect(self, call: dict[str, Any]) -> None:
        known = self._calls.setdefault(
            call.get("index", 0),
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        known["id"] = call.get("id") or known["id"]
        function = call.get("function") or {}
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""


def _is_call(call: object) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict)
