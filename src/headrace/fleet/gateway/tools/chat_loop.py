"""The tool loop of a chat completion: ask the model, call what it wants called, tell it, until it answers.

A client sees one answer, whole or streamed. Text of every round reaches it as it comes; calls of the gateway's own tools do
not; calls of its own tools end the answer as they would without a loop. Where a model wants both in one round, the
gateway's go first, and the model is asked again.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace.core.errors import BadRequestError, GatewayTimeoutError, HeadraceError
from headrace.fleet.gateway.inner import InnerAnswer, Sink
from headrace.fleet.gateway.tools.plan import ToolPlan
from headrace.fleet.gateway.tools.rounds import (
    Calls,
    Round,
    StreamRound,
    whole_round,
    with_choice,
    without_calls,
)
from headrace.fleet.gateway.tools.told import ToldStream
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.tools.turn import Turn, in_time
from headrace.fleet.gateway.tools.usage import RoundsUsage
from headrace.web.asgi import Send, send_body
from headrace.web.streaming import DONE

#: Has one request answered, as ASGI.
Ask = Callable[[dict[str, Any], Send], Awaitable[None]]


class ChatLoop:
    """One request with tools of the gateway."""

    def __init__(
        self, toolbox: Toolbox, plan: ToolPlan, body: dict[str, Any], request_id: str, ask: Ask
    ) -> None:
        """Raises BadRequestError."""
        self._config = toolbox.config
        self._plan = plan
        self._ask = ask
        given = body.get("messages")
        if not isinstance(given, list):
            raise BadRequestError("'messages': expected a list.", param="messages")
        self._messages: list[Any] = list(given)
        self._body = {**body, "tools": plan.functions()}
        if not plan.functions():
            del self._body["tools"]
            self._body.pop("tool_choice", None)
        self._turn = Turn(toolbox, plan, request_id)
        self._usage = RoundsUsage()

    async def run(self, send: Send) -> None:
        """Answer the client. Raises HeadraceError before the first byte."""
        if self._body.get("stream") is True:
            stream = ToldStream(send)
            try:
                await in_time(self._run_streamed(stream), self._config.timeout)
            except GatewayTimeoutError as error:
                await stream.break_off(error)
        else:
            answer = await in_time(self._whole(), self._config.timeout)
            await send_body(send, answer.body, status=answer.status)

    # -- rounds -----------------------------------------------------------------------------------

    def _round_body(self, number: int) -> dict[str, Any]:
        body = {**self._body, "messages": self._messages}
        return with_choice(body, number, self._config.max_rounds)

    def _own_calls(self, found: Round, number: int) -> Calls:
        """What the gateway has to call now. Some models call tools where they may not: then nothing."""
        if number == self._config.max_rounds - 1 or found.is_cut:
            return []
        return [call for call in found.calls if call["function"]["name"] in self._plan.own]

    async def _call(self, text: str, calls: Calls) -> None:
        """Call tools, and put calls and results behind the messages."""
        functions = [call["function"] for call in calls]
        results = await self._turn.call(
            [(function["name"], str(function["arguments"])) for function in functions]
        )
        self._messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
        self._messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result.text}
            for call, result in zip(calls, results, strict=True)
        ]

    # -- to the client ----------------------------------------------------------------------------

    async def _whole(self) -> InnerAnswer:
        """The final answer, with the usage of all rounds; or what a model's server answered instead of one."""
        for number in range(self._config.max_rounds):
            sink = Sink()
            await self._ask(self._round_body(number), sink.send)
            answer = sink.answer()
            if answer.status != 200:
                return answer
            found = whole_round(answer.body)
            self._usage.add(found.usage)
            calls = self._own_calls(found, number)
            if not calls:
                return self._last(answer, found)
            await self._call(found.text, calls)
        raise AssertionError("the last round calls nothing")

    def _last(self, answer: InnerAnswer, found: Round) -> InnerAnswer:
        left_over = any(call["function"]["name"] in self._plan.own for call in found.calls)
        if self._usage.num_rounds == 1 and not left_over:
            return answer
        told = msgspec.json.decode(answer.body)
        if self._usage.sum:
            told["usage"] = self._usage.sum
        if left_over:
            told["choices"][0] = without_calls(told["choices"][0], self._plan.own)
        return InnerAnswer(200, msgspec.json.encode(told))

    async def _run_streamed(self, stream: ToldStream) -> None:
        name: dict[str, Any] = {}
        for number in range(self._config.max_rounds):
            body = {**self._round_body(number), "stream_options": {"include_usage": True}}
            heard = StreamRound(stream.tell, name, is_first=number == 0)
            try:
                await self._ask(body, heard.send)
            except HeadraceError as error:
                await stream.break_off(error)
                return
            if heard.refusal is not None:
                await stream.refuse(heard.refusal)
                return
            if heard.has_failed:
                await stream.end(heard.last_events() + DONE)
                return
            found = heard.finish()
            self._usage.add(found.usage)
            calls = self._own_calls(found, number)
            if not calls:
                await stream.end(self._last_events(heard))
                return
            await self._call(found.text, calls)

    def _last_events(self, heard: StreamRound) -> bytes:
        events = heard.last_events(dropped=self._plan.own)
        options = self._body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage") is True and self._usage.sum:
            events += heard.usage_event(self._usage.sum)
        return events + DONE
