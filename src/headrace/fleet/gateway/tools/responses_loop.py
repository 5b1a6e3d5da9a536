"""The tool loop of `/v1/responses`: rounds in one piece, calls shown as `mcp_call` items.

A stream is told when the last round has ended: its events are those of an answer that came at once.
"""

from typing import Any

import msgspec

from headrace.core.errors import BadGatewayError, BadRequestError
from headrace.fleet.gateway.inner import InnerAnswer, Sink
from headrace.fleet.gateway.tools.chat_loop import Ask
from headrace.fleet.gateway.tools.plan import ToolPlan
from headrace.fleet.gateway.tools.response_events import events_of
from headrace.fleet.gateway.tools.rounds import UNREADABLE, with_choice
from headrace.fleet.gateway.tools.server_calls import Items, ServerCalls
from headrace.fleet.gateway.tools.told import ToldStream
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.tools.turn import Turn, in_time
from headrace.fleet.gateway.tools.usage import RoundsUsage
from headrace.web.asgi import Send, send_body
from headrace.web.streaming import named_event

#: Begins the id of a call that is shown; the call's own id follows.
_SHOWN = "mcp_"


class ResponsesLoop:
    """One request with tools of the gateway."""

    def __init__(
        self, toolbox: Toolbox, plan: ToolPlan, body: dict[str, Any], request_id: str, ask: Ask
    ) -> None:
        """Raises BadRequestError."""
        self._toolbox = toolbox
        self._plan = plan
        self._ask = ask
        self._server_calls = ServerCalls(body, plan.own)
        self._input = _read_input(body.get("input"), plan)
        own = [{"type": "function", **tool.function["function"]} for tool in plan.own.values()]
        self._body = {**body, "tools": [*own, *plan.others], "stream": False}
        if not self._body["tools"]:
            del self._body["tools"]
            self._body.pop("tool_choice", None)
        self._body.pop("stream_options", None)
        self._is_stream = body.get("stream") is True
        self._turn = Turn(toolbox, plan, request_id)
        self._shown: list[dict[str, Any]] = []
        self._usage = RoundsUsage()

    async def run(self, send: Send) -> None:
        """Answer the client. Raises HeadraceError before the first byte."""
        answer = await in_time(self.whole(), self._toolbox.config.timeout)
        if answer.status != 200 or not self._is_stream:
            await send_body(send, answer.body, status=answer.status)
            return
        stream = ToldStream(send)
        response = msgspec.json.decode(answer.body)
        await stream.end(b"".join(named_event(data) for data in events_of(response)))

    async def whole(self) -> InnerAnswer:
        """The final answer, with calls and usage of all rounds."""
        rounds = self._toolbox.config.max_rounds
        for number in range(rounds):
            sink = Sink()
            body = with_choice({**self._body, "input": self._input}, number, rounds)
            is_last = number == rounds - 1 or self._server_calls.are_over
            await self._ask(self._server_calls.bounded(body), sink.send)
            answer = sink.answer()
            if answer.status != 200:
                return answer
            response, output = _read(answer.body)
            self._usage.add(response.get("usage"))
            calls = [item for item in output if self._is_own(item)]
            # What was cut off may end in the middle of a call.
            if not calls or is_last or response.get("status") == "incomplete":
                return self._last(response, output)
            await self._call(output, self._server_calls.take(calls, output))
        raise AssertionError("the last round calls nothing")

    def _last(self, response: dict[str, Any], output: list[dict[str, Any]]) -> InnerAnswer:
        left = [item for item in output if not self._is_own(item)]
        response["output"] = [*self._shown, *left]
        response["usage"] = self._usage.sum or None
        self._server_calls.told(response)
        return InnerAnswer(200, msgspec.json.encode(response))

    def _is_own(self, item: dict[str, Any]) -> bool:
        name = item.get("name")
        is_call = item.get("type") == "function_call" and isinstance(name, str)
        return is_call and name in self._plan.own

    async def _call(self, output: list[dict[str, Any]], calls: Items) -> None:
        """Make these calls of an output, and put both behind the input; other calls in it are as if there were none."""
        results = await self._turn.call(
            [(call["name"], str(call.get("arguments", ""))) for call in calls]
        )
        is_own = {id(call) for call in calls}
        self._input += [
            item for item in output if item.get("type") != "function_call" or id(item) in is_own
        ]
        for call, result in zip(calls, results, strict=True):
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
                    "id": f"{_SHOWN}{call.get('call_id')}",
                    "server_label": tool.source,
                    "name": tool.local_name,
                    "arguments": call.get("arguments", ""),
                    "output": None if result.is_error else result.text,
                    "error": result.text if result.is_error else None,
                }
            )


def _read(body: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A response, and its output. Raises BadGatewayError."""
    try:
        response = msgspec.json.decode(body, type=dict[str, Any])
        return response, msgspec.convert(response.get("output") or [], list[dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        raise BadGatewayError(UNREADABLE) from None


def _read_input(given: object, plan: ToolPlan) -> list[Any]:
    """Items, with the calls that an earlier answer showed as replicas know them. Raises BadRequestError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRequestError("'input': expected a text or a list.", param="input")
    items: list[Any] = []
    for item in given:
        if isinstance(item, dict) and item.get("type") == "mcp_call":
            items += _as_function(item, plan)
        else:
            items.append(item)
    return items


def _as_function(item: dict[str, Any], plan: ToolPlan) -> list[dict[str, Any]]:
    source, name = item.get("server_label"), item.get("name")
    known = (t for t in plan.own.values() if t.source == source and t.local_name == name)
    tool = next(known, None)
    call_id = str(item.get("id", "")).removeprefix(_SHOWN)
    return [
        {
            "type": "function_call",
            "call_id": call_id,
            "name": tool.name if tool is not None else f"{source}__{name}",
            "arguments": item.get("arguments") or "{}",
        },
        {
            "type": "function_call_output",
            "call_id": call_id,
            "output": str(item.get("output") or item.get("error") or ""),
        },
    ]
