"""The tool loop of a chat completion: ask the model, call what it wants called, tell it, until it answers.

A client sees one answer, whole or streamed. Text of every round reaches it as it comes; calls of the gateway's own tools do
not; calls of its own tools end the answer as they would without a loop. Where a model wants both in one round, the
gateway's go first, and the model is asked again.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from headrace.core.errors import HeadraceError
from headrace.fleet.gateway.inner import InnerAnswer, Sink
from headrace.fleet.gateway.tools.plan import ToolPlan
from headrace.fleet.gateway.tools.rounds import Calls, Round, StreamRound, Total, whole_round
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.tools.values import Result
from headrace.web.asgi import Send, send_body
from headrace.web.streaming import CONTENT_TYPE, DONE, event

#: Has one request answered, as ASGI.
Ask = Callable[[dict[str, Any], Send], Awaitable[None]]


class ChatLoop:
    """One request with tools of the gateway."""

    def __init__(
        self, toolbox: Toolbox, plan: ToolPlan, body: dict[str, Any], request_id: str, ask: Ask
    ) -> None:
        self._toolbox = toolbox
        self._plan = plan
        self._request_id = request_id
        self._ask = ask
        self._messages = list(body.get("messages") or ())
        self._body = {**body, "tools": plan.functions()}
        if not plan.functions():
            del self._body["tools"]
        self._calls_left = toolbox.config.max_calls
        self.total = Total()

    async def run(self, send: Send) -> None:
        """Answer the client. Raises HeadraceError before the first byte."""
        if self._body.get("stream") is True:
            await self._run_streamed(send)
        else:
            await self._run_whole(send)

    async def whole(self) -> InnerAnswer:
        """The final answer, with the usage of all rounds; or what a model's server answered instead of one."""
        config = self._toolbox.config
        for number in range(config.max_rounds):
            sink = Sink()
            body = {**self._round_body(number), "stream": False}
            body.pop("stream_options", None)
            await self._ask(body, sink.send)
            answer = sink.answer()
            if answer.status != 200:
                return answer
            found = whole_round(answer.body)
            self.total.add(found.usage)
            calls = self._own_calls(found)
            if not calls:
                return InnerAnswer(200, self.total.put_into(answer.body))
            await self._call(found.text, calls)
        raise AssertionError("the last round may call nothing")

    # -- rounds -----------------------------------------------------------------------------------

    def _round_body(self, number: int) -> dict[str, Any]:
        body = {**self._body, "messages": self._messages}
        if number and body.get("tool_choice") not in (None, "auto", "none"):
            body["tool_choice"] = "auto"  # what had to be called has been
        if number == self._toolbox.config.max_rounds - 1 and "tools" in body:
            body["tool_choice"] = "none"
        return body

    def _own_calls(self, found: Round) -> Calls:
        return [call for call in found.calls if call["function"]["name"] in self._plan.own]

    async def _call(self, text: str, calls: Calls) -> None:
        """Call tools, and put calls and results behind the messages."""
        now, late = calls[: self._calls_left], calls[self._calls_left :]
        self._calls_left -= len(now)
        wanted = [
            (self._plan.own[call["function"]["name"]], str(call["function"]["arguments"]))
            for call in now
        ]
        results: Sequence[Result] = await self._toolbox.call_all(wanted, self._request_id)
        refused = Result("No more tools may be called for this request.", True)
        results = [*results, *(refused for _ in late)]
        self._messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
        self._messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result.text}
            for call, result in zip(calls, results, strict=True)
        ]

    # -- to the client ----------------------------------------------------------------------------

    async def _run_whole(self, send: Send) -> None:
        answer = await self.whole()
        await send_body(send, answer.body, status=answer.status)

    async def _run_streamed(self, send: Send) -> None:
        wants_usage = _wants_usage(self._body)
        stream = ToldStream(send)
        name: dict[str, Any] = {}
        for number in range(self._toolbox.config.max_rounds):
            body = {**self._round_body(number), "stream": True}
            body["stream_options"] = {"include_usage": True}
            heard = StreamRound(stream.tell, name, is_first=number == 0)
            try:
                await self._ask(body, heard.send)
            except HeadraceError:
                if not stream.has_begun:
                    raise
                await stream.end(b"")
                return
            if heard.refusal is not None:
                await stream.refuse(heard.refusal)
                return
            found = heard.finish()
            self.total.add(found.usage)
            calls = self._own_calls(found)
            if not calls:
                last = heard.last_events()
                if wants_usage:
                    last += event(msgspec.json.encode(heard.usage_chunk(self.total)))
                await stream.end(last + DONE)
                return
            await self._call(found.text, calls)


class ToldStream:
    """A stream that begins with the first thing to be told."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def tell(self, data: bytes) -> None:
        """Events."""
        if not self.has_begun:
            self.has_begun = True
            headers = [(b"content-type", CONTENT_TYPE.encode()), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """Last events, and the end."""
        await self.tell(data)
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, answer: InnerAnswer) -> None:
        """A round was refused: with its status if nothing was told, else with an event."""
        if not self.has_begun:
            await send_body(self._send, answer.body, status=answer.status)
        else:
            await self.end(event(answer.body) + DONE)


def _wants_usage(body: dict[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True
