"""What a route says → what a call of gRPC answers with."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.api.problems import Problem
from headrace.core.errors import OverloadedError
from headrace.server.inner import InnerRequest
from headrace.server.rpc.statuses import code_of
from headrace.server.rpc.translate import fill
from headrace.server.sockets import AnswerReader
from headrace.web.asgi import App, Message
from headrace.web.problems import Answer, answer_to, status_of

#: Headers of an answer that go on as metadata, before the first message.
_SHOWN: Final = ("x-request-id", "x-headrace-ignored-fields")
#: Trailing metadata with the JSON error object.
ERROR: Final = "headrace-error-bin"


class CallAnswer:
    """Takes the ASGI messages of one answer; a stream's parts are sent on as they come."""

    def __init__(self, context: Any, reply: Any, *, is_stream: bool, stall_timeout: float) -> None:
        """`reply` is the class of the method's replies."""
        self._context = context
        self._reply = reply
        self._is_stream = is_stream
        self._stall_timeout = stall_timeout
        self._reader = AnswerReader()
        self._retry_after: str | None = None
        self._error: tuple[Problem, int] | None = None
        self._whole: Any = None
        self._leave: Callable[[], None] = lambda: None
        self._stalled = False

    async def of(self, request: InnerRequest, app: App) -> None:
        """Have the request answered; one whose client does not read is left by it."""
        self._leave = request.leave
        await request.run(app, self._deliver)

    async def _deliver(self, message: Message) -> None:
        if self._stalled:
            return
        if message["type"] == "http.response.start":
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in message["headers"]}
            self._retry_after = headers.get("retry-after")
            shown = tuple((name, headers[name]) for name in _SHOWN if name in headers)
            await self._context.send_initial_metadata(shown)
        for word, data, status in self._reader.take(message):
            if word == b"error":
                self._error = (msgspec.json.decode(data, type=Problem), status)
            elif self._is_stream:
                await self._write(fill(self._reply(), data))
            else:
                self._whole = fill(self._reply(), data)

    async def finish(self) -> Any:
        """The whole reply, or None after a stream; an error ends the call."""
        if self._stalled:
            words = f"The client has read nothing for {self._stall_timeout:.0f} s."
            await abort(self._context, answer_to(OverloadedError(words)))
        if self._error is not None:
            problem, status = self._error
            headers = {} if self._retry_after is None else {"retry-after": self._retry_after}
            await abort(self._context, Answer(status or status_of(problem), headers, problem))
        return self._whole

    async def _write(self, reply: Any) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout):
                await self._context.write(reply.SerializeToString())
        except TimeoutError:
            self._stalled = True
            self._leave()


async def abort(context: Any, answer: Answer) -> None:
    """End a call with an error. Raises what gRPC wants for that."""
    trailing: list[tuple[str, Any]] = [(ERROR, msgspec.json.encode(answer.problem))]
    if (wait := answer.headers.get("retry-after")) is not None:
        trailing.append(("retry-after", wait))
    await context.abort(code_of(answer.status), answer.problem.message, tuple(trailing))
