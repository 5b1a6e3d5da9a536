"""One run of a pipeline's steps."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct

from headrace.config.fleet.pipelines import RESERVED, LlmStep, Pipeline, RetrieveStep, Step
from headrace.core.errors import (
    BadGatewayError,
    BadRequestError,
    ConfigError,
    GatewayTimeoutError,
    HeadraceError,
)
from headrace.fleet.gateway.inner import InnerAnswer
from headrace.fleet.gateway.limit import Limit
from headrace.fleet.gateway.pipelines.outside import Outside
from headrace.fleet.gateway.pipelines.stores import Stores
from headrace.web.asgi import Send

if TYPE_CHECKING:
    from headrace.fleet.gateway.pipelines.templates import Templates

log = logging.getLogger("headrace.fleet.pipelines")

CHAT = "/v1/chat/completions"
#: Fields of the client's request that the last step gets too, unless its own parameters say otherwise.
_KEPT = (
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed",
    "stop", "n", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "response_format",
)  # fmt: skip
#: Fields by which a client has its own or a gateway's tools called. Steps may have tools by their `parameters`.
_CALLING = ("tools", "functions")
#: Fields of it that every model's step gets: who asks, and whose cached prompts it may use.
_SHARED = ("user", "cache_salt", "priority")


class Gate(Protocol):
    """The gateway, as a step sees it: requests for the pipeline's own caller."""

    def ask(self, path: str, body: Mapping[str, Any]) -> Awaitable[InnerAnswer]:
        """A whole answer."""
        ...

    def serve(
        self, path: str, body: Mapping[str, Any], send: Send, limit: Limit | None = None
    ) -> Awaitable[None]:
        """An answer, passed on, that ends in time."""
        ...


class Timing(Struct, frozen=True):
    """What a step took."""

    step: str
    seconds: float
    outcome: str
    """ok, skipped or failed."""


class Shared(Protocol):
    """What all runs of a gateway share."""

    @property
    def outside(self) -> Outside:
        """Other servers."""
        ...

    @property
    def stores(self) -> Stores:
        """Where texts are found."""
        ...

    def note(self, pipeline: str, timing: Timing) -> None:
        """A step has ended."""
        ...

    def now(self) -> float:
        """Seconds."""
        ...


class Run:
    """One request: values of its steps so far, and what they took."""

    def __init__(
        self,
        shared: Shared,
        pipeline: Pipeline,
        templates: "Templates",
        body: Mapping[str, Any],
        gate: Gate,
    ) -> None:
        """Raises BadRequestError."""
        self._shared = shared
        self._pipeline = pipeline
        self._templates = templates
        self._body = body
        self._gate = gate
        self.timings: list[Timing] = []
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise BadRequestError("'messages': expected a list.", param="messages")
        self._messages: list[Any] = messages
        _check_tools(body)
        self._values: dict[str, Any] = {
            "input": _last_user_text(self._messages),
            "messages": self._messages,
        }

    async def prepare(self) -> dict[str, Any]:
        """Run all steps but the last; the request of that one."""
        for step in self._pipeline.steps[:-1]:
            await self._step(step)
        last = self._pipeline.steps[-1].llm
        assert last is not None
        kept = {name: self._body[name] for name in _KEPT if name in self._body}
        return {**kept, **self._request(last)}

    async def _step(self, step: Step) -> None:
        """Run it, and keep its result."""
        started = self._shared.now()
        outcome = "failed"
        try:
            if not self._templates.holds(step.when, self._values):
                self._values[step.name] = None
                outcome = "skipped"
                return
            async with asyncio.timeout(step.timeout):
                self._values[step.name] = await self._result(step)
            outcome = "ok"
        except TimeoutError:
            late = f"The step '{step.name}' took more than {step.timeout:g} s."
            log.warning("Pipeline %s: %s", self._pipeline.name, late)
            raise GatewayTimeoutError(late) from None
        except HeadraceError as error:
            if _name(error, step.name):
                log.warning("Pipeline %s: %s", self._pipeline.name, error)
            raise
        finally:
            seconds = self._shared.now() - started
            timing = Timing(step.name, seconds, outcome)
            self.timings.append(timing)
            self._shared.note(self._pipeline.name, timing)

    async def _result(self, step: Step) -> Any:
        shared, templates, values = self._shared, self._templates, self._values
        if step.parallel:
            await self._at_once(step.parallel)
            return {inner.name: self._values[inner.name] for inner in step.parallel}
        if step.llm is not None:
            return await self._ask(step.llm)
        if step.retrieve is not None:
            return await self._retrieve(step.retrieve)
        if step.http is not None:
            headers = {name: str(value) for name, value in step.http.headers.items()}
            body = templates.text(step.http.body, values) if step.http.body else None
            return await shared.outside.http(step.http.url, body, headers)
        assert step.kserve is not None
        headers = {name: str(value) for name, value in step.kserve.headers.items()}
        inputs = templates.deep(step.kserve.inputs, values)
        return await shared.outside.kserve(step.kserve.url, step.kserve.model, inputs, headers)

    async def _at_once(self, steps: tuple[Step, ...]) -> None:
        tasks = [asyncio.ensure_future(self._step(step)) for step in steps]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, step: LlmStep) -> dict[str, Any]:
        answer = await self._gate.ask(CHAT, self._request(step))
        try:
            found = msgspec.json.decode(answer.body)
            if answer.status != 200:
                kind = BadRequestError if answer.status < 500 else BadGatewayError
                raise kind(str(found["error"]["message"]))
            choice = found["choices"][0]
            text = choice["message"].get("content") or ""
        except (msgspec.DecodeError, KeyError, TypeError, IndexError, AttributeError):
            raise BadGatewayError("The model's answer cannot be read.") from None
        return {"text": text, "finish_reason": choice.get("finish_reason")}

    def _request(self, step: LlmStep) -> dict[str, Any]:
        messages: list[Any] = [
            {**message, "content": self._templates.text(message.get("content", ""), self._values)}
            for message in step.messages
        ]
        shared = {name: self._body[name] for name in _SHARED if name in self._body}
        request = {**shared, **step.parameters, "model": step.model}
        return {**request, "messages": messages or self._messages}

    async def _retrieve(self, step: RetrieveStep) -> dict[str, Any]:
        query = self._templates.text(step.query, self._values)
        hits = await self._shared.stores.nearest(step.store, query, step.top, self._gate.ask)
        return {"hits": hits, "text": "\n\n".join(hit["text"] for hit in hits)}


def checked(pipeline: Pipeline) -> "Templates":
    """The templates of a pipeline. Raises ConfigError."""
    # Jinja is for gateways with a pipeline; others do without.
    from headrace.fleet.gateway.pipelines.templates import Templates

    templates = Templates(pipeline.max_text)
    known = set(RESERVED)
    for outer in pipeline.steps:
        for step in outer.walk():
            try:
                templates.check_deep(_texts(step), known)
            except ConfigError as error:
                place = f"The step '{step.name}' of the pipeline '{pipeline.name}'"
                raise ConfigError(f"{place}: {error}") from None
        known |= {step.name for step in outer.walk()}
    return templates


def _texts(step: Step) -> list[Any]:
    """All templates of a step, alone or within other values."""
    texts: list[Any] = [step.when]
    if step.llm is not None:
        texts += [message.get("content", "") for message in step.llm.messages]
    if step.retrieve is not None:
        texts.append(step.retrieve.query)
    if step.http is not None:
        texts.append(step.http.body)
    if step.kserve is not None:
        texts.append(step.kserve.inputs)
    return texts


def _check_tools(body: Mapping[str, Any]) -> None:
    """Raises BadRequestError for a request with tools: they would be left out without a word."""
    fields = [name for name in _CALLING if body.get(name)]
    if body.get("tool_choice") not in (None, "auto", "none"):
        fields.append("tool_choice")
    if fields:
        raise BadRequestError(
            f"'{fields[0]}': '{body.get('model')}' is a pipeline, and calls no tools for its clients.",
            param=fields[0],
        )


def _name(error: HeadraceError, step: str) -> bool:
    """Say once, in its sentence, which step an error comes from: the innermost. Whether it was not said before."""
    text = str(error)
    if text.startswith("The step '"):
        return False
    error.args = (f"The step '{step}': {text}", *error.args[1:])
    return True


def _last_user_text(messages: list[Any]) -> str:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""
