"""The tool loop of `/v1/responses`: rounds in one piece, calls shown as `mcp_call` items.

A stream is told when the last round has ended: its events are those of an answer that came at once.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.fleet.gateway.inner import InnerAnswer, Sink
from headrace.fleet.gateway.tools.chat_loop import Ask, ToldStream
from headrace.fleet.gateway.tools.plan import ToolPlan
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.tools.values import Result
from headrace.web.asgi import Send, send_body
from headrace.web.streaming import named_event

_COUNTS = ("input_tokens", "output_tokens", "total_tokens")


class ResponsesLoop:
    """One request with tools of the gateway."""

    def __init__(
        self, toolbox: Toolbox, plan: ToolPlan, body: dict[str, Any], request_id: str, ask: Ask
    ) -> None:
        self._toolbox = toolbox
        self._plan = plan
        self._request_id = request_id
        self._ask = ask
        given = body.get("input")
        self._input: list[Any] = (
            [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
        )
        own = [{"type": "function", **tool.function["function"]} for tool in plan.own.values()]
        self._body = {**body, "tools": [*own, *plan.others], "stream": False}
        if not self._body["tools"]:
            del self._body["tools"]
        self._is_stream = body.get("stream") is True
        self._calls_left = toolbox.config.max_calls
        self._shown: list[dict[str, Any]] = []
        self._usage = dict.fromkeys(_COUNTS, 0)

    async def run(self, send: Send) -> None:
        """Answer the client. Raises HeadraceError before the first byte."""
        answer = await self.whole()
        if answer.status != 200 or not self._is_stream:
            await send_body(send, answer.body, status=answer.status)
            return
        stream = ToldStream(send)
        response = msgspec.json.decode(answer.body)
        await stream.end(b"".join(named_event(data) for data in _events(response)))

    async def whole(self) -> InnerAnswer:
        """The final answer, with calls and usage of all rounds."""
        rounds = self._toolbox.config.max_rounds
        for number in range(rounds):
            body = {**self._body, "input": self._input}
            if number == rounds - 1 and "tools" in body:
                body["tool_choice"] = "none"
            elif number and body.get("tool_choice") not in (None, "auto", "none"):
                body["tool_choice"] = "auto"
            sink = Sink()
            await self._ask(body, sink.send)
            answer = sink.answer()
            if answer.status != 200:
                return answer
            response = msgspec.json.decode(answer.body)
            self._add(response.get("usage"))
            output = response.get("output") or []
            calls = [
                item
                for item in output
                if item.get("type") == "function_call" and item.get("name") in self._plan.own
            ]
            if not calls:
                response["output"] = [*self._shown, *output]
                response["usage"] = {**(response.get("usage") or {}), **self._usage}
                return InnerAnswer(200, msgspec.json.encode(response))
            await self._call(output, calls)
        raise AssertionError("the last round may call nothing")

    async def _call(self, output: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
        now, late = calls[: self._calls_left], calls[self._calls_left :]
        self._calls_left -= len(now)
        wanted = [(self._plan.own[call["name"]], str(call.get("arguments", ""))) for call in now]
        results = await self._toolbox.call_all(wanted, self._request_id)
        refused = Result("No more tools may be called for this request.", True)
        is_own = {id(call) for call in calls}
        self._input += [
            item for item in output if item.get("type") != "function_call" or id(item) in is_own
        ]
        for call, result in zip(calls, [*results, *(refused for _ in late)], strict=True):
            self._input.append(
                {
                    "type": "function_call_output",
                    "call_id": call.get("call_id"),
                    "output": result.text,
                }
            )
            tool = self._plan.own[call["name"]]
            self._shown.append(
                {
                    "type": "mcp_call",
                    "id": f"mcp_{call.get('call_id')}",
                    "server_label": tool.source,
                    "name": tool.local_name,
                    "arguments": call.get("arguments", ""),
                    "output": None if result.is_error else result.text,
                    "error": result.text if result.is_error else None,
                }
            )

    def _add(self, usage: object) -> None:
        for name in _COUNTS:
            value = usage.get(name) if isinstance(usage, dict) else None
            self._usage[name] += value if isinstance(value, int) else 0


def _events(response: dict[str, Any]) -> Iterator[bytes]:
    """A whole response as OpenAI streams one."""
    number = 0

    def told(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return msgspec.json.encode({"type": kind, "sequence_number": number - 1, **fields})

    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield told("response.created", response=begun)
    yield told("response.in_progress", response=begun)
    for place, item in enumerate(response["output"]):
        shell = {**item, "content": []} if item.get("type") == "message" else item
        yield told("response.output_item.added", output_index=place, item=shell)
        parts = item.get("content") or () if item.get("type") == "message" else ()
        for index, part in enumerate(parts):
            where = {"item_id": item.get("id"), "output_index": place, "content_index": index}
            text = part.get("text", "")
            yield told("response.content_part.added", **where, part={**part, "text": ""})
            yield told("response.output_text.delta", **where, delta=text, logprobs=[])
            yield told("response.output_text.done", **where, text=text, logprobs=[])
            yield told("response.content_part.done", **where, part=part)
        yield told("response.output_item.done", output_index=place, item=item)
    yield told(f"response.{response.get('status', 'completed')}", response=response)
