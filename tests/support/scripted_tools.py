"""Tools that say what a test wants, and a model whose rounds are written down."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.config.fleet.tools import HttpTool, McpServer, ToolsConfig
from headrace.core.clock import SystemClock
from headrace.fleet.gateway.tools.toolbox import Spec, Toolbox
from headrace.fleet.gateway.tools.values import Result, Tool
from headrace.observe.metrics import Metrics


class ScriptedSource:
    """One server or endpoint: its tools, and a function that answers every call."""

    def __init__(
        self, name: str, tools: Iterable[str], answer: Callable[[str, Any], Result]
    ) -> None:
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.is_closed = False
        self.is_connecting = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_running = 0
        self.most_running = 0
        self._name = name
        self._tools = tuple(tools)
        self._answer = answer

    async def tools(self) -> tuple[Tool, ...]:
        if self.is_connecting:
            await asyncio.Event().wait()

        def tool(local: str) -> Tool:
            name = local if local == self._name else f"{self._name}__{local}"
            return Tool(
                name=name,
                description=f"Does {local}",
                parameters={"type": "object"},
                source=self._name,
                local_name=local,
            )

        return tuple(tool(local) for local in self._tools)

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        self.called.append((tool.local_name, arguments))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            return self._answer(tool.local_name, arguments)
        finally:
            self.num_running -= 1

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class Sources:
    """What a toolbox opens; the newest of each name."""

    tools: dict[str, tuple[str, ...]]
    answer: Callable[[str, Any], Result] = lambda name, given: Result(
        f"{name}: {json.dumps(given)}"
    )
    opened: list[ScriptedSource] = field(default_factory=list)

    def open(self, spec: Spec) -> ScriptedSource:
        made = ScriptedSource(spec.name, self.tools.get(spec.name, (spec.name,)), self.answer)
        self.opened.append(made)
        return made


def http_tool(name: str, **fields: Any) -> HttpTool:
    """An endpoint that is never asked."""
    return HttpTool(name=name, description="", url="http://tools.test/", **fields)


def mcp_server(name: str) -> McpServer:
    """A server that is never asked."""
    return McpServer(name=name, url="http://tools.test/mcp")


def toolbox_of(sources: Sources, **fields: Any) -> Toolbox:
    """A toolbox with these sources, started."""
    servers = [name for name, tools in sources.tools.items() if tools != (name,)]
    config = ToolsConfig(
        servers=tuple(mcp_server(name) for name in servers),
        http=tuple(http_tool(name) for name in sources.tools if name not in servers),
        **fields,
    )
    made = Toolbox(config, Metrics(), SystemClock(), sources.open)
    made.start()
    return made


# -- a model ------------------------------------------------------------------------------------------


def call(name: str, arguments: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    """A call as a chat completion's message has it."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    """What a round cost."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass
class Said:
    """One round of the model."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    status: int = 200
    raw: bytes | None = None
    """Instead of all that."""
    error: Exception | None = None
    """Raised instead."""


class ScriptedModel:
    """Answers chat completions, whole or streamed in pieces of `piece` bytes."""

    def __init__(self, rounds: list[Said], piece: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        self._rounds = iter(rounds)
        self._piece = piece

    async def ask(self, body: dict[str, Any], send: Any) -> None:
        self.asked.append(json.loads(json.dumps(body)))
        said = next(self._rounds)
        if said.error is not None:
            raise said.error
        data = said.raw
        if data is None:
            is_stream = body.get("stream") is True and said.status == 200
            data = self._events(said) if is_stream else self._whole(said)
        await send({"type": "http.response.start", "status": said.status, "headers": []})
        size = self._piece or len(data) or 1
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _whole(self, said: Said) -> bytes:
        if said.status != 200:
            return json.dumps({"error": {"message": said.text}}).encode()
        message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
        if said.calls:
            message["tool_calls"] = said.calls
        reason = "tool_calls" if said.calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        number = len(self.asked)
        answer = {"id": f"r{number}", "created": number, "model": "m", "choices": [choice]}
        return json.dumps({**answer, "usage": said.usage}).encode()

    def _events(self, said: Said) -> bytes:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": char} for char in said.text]
        for index, each in enumerate(said.calls):
            function = each["function"]
            head = {"name": function["name"], "arguments": ""}
            deltas.append({"tool_calls": [{**each, "index": index, "function": head}]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": char}}]}
                for char in function["arguments"]
            ]
        reason = "tool_calls" if said.calls else "stop"
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
        number = len(self.asked)
        head = {"id": f"r{number}", "created": number, "model": "m"}
        chunks = [{**head, "choices": [choice]} for choice in choices]
        if said.usage is not None:
            chunks.append({**head, "choices": [], "usage": said.usage})
        lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
        return "".join([*lines, "data: [DONE]\n\n"]).encode()


class Heard:
    """A client of a loop."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_ended = False

    async def send(self, message: Any) -> None:
        assert not self.is_ended
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
            self.is_ended = not message.get("more_body", False)

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.body.decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for event in self.events for choice in event.get("choices", ())]

    @property
    def text(self) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in self.choices)
