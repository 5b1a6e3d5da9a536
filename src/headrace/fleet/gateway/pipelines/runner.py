"""Runs a pipeline for one request: step after step, the last one to the client."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from headrace.config.fleet.pipelines import LlmStep, Pipeline, PipelinesConfig, RetrieveStep, Step
from headrace.core.clock import Clock
from headrace.core.errors import BadGatewayError, BadRequestError, GatewayTimeoutError
from headrace.fleet.gateway.inner import InnerAnswer
from headrace.fleet.gateway.pipelines.outside import Outside
from headrace.fleet.gateway.pipelines.stores import Stores
from headrace.fleet.gateway.pipelines.templates import Templates
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics
from headrace.web.asgi import Message, Send

CHAT = "/v1/chat/completions"
#: Fields of the client's request that the last step gets too, unless its own parameters say otherwise.
_KEPT = (
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed",
    "stop", "n", "user", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs",
)  # fmt: skip

log = logging.getLogger("headrace.fleet.pipelines")


class Gate(Protocol):
    """The gateway, as a step sees it: requests for the pipeline's own caller."""

    def ask(self, path: str, body: Mapping[str, Any]) -> Awaitable[InnerAnswer]:
        """A whole answer."""
        ...

    def serve(self, path: str, body: Mapping[str, Any], send: Send) -> Awaitable[None]:
        """An answer, passed on."""
        ...


class Timing(Struct, frozen=True):
    """What a step took."""

    step: str
    seconds: float
    outcome: str
    """ok, skipped or failed."""


class Pipelines:
    """All pipelines of a gateway."""

    def __init__(self, config: PipelinesConfig, metrics: Metrics, clock: Clock) -> None:
        """Raises ConfigError for templates that do not compile, and stores that cannot be opened."""
        self._items = {pipeline.name: pipeline for pipeline in config.items}
        self._metrics = metrics
        self._clock = clock
        largest = max((pipeline.max_text for pipeline in config.items), default=1024)
        self._outside = Outside(largest)
        self._templates = {name: _checked(pipeline) for name, pipeline in self._items.items()}
        self._stores = Stores(config.vectors, self._outside)

    @property
    def names(self) -> tuple[str, ...]:
        """What clients can ask for."""
        return tuple(self._items)

    def knows(self, model: str) -> bool:
        """There is a pipeline of this name."""
        return model in self._items

    async def run(self, name: str, body: Mapping[str, Any], gate: Gate, send: Send) -> None:
        """Answer a chat completion for a pipeline's name. Raises HeadraceError before the first byte."""
        pipeline = self._items[name]
        run = _Run(self, pipeline, self._templates[name], body, gate)
        try:
            async with asyncio.timeout(pipeline.timeout):
                last = await run.prepare()
        except TimeoutError:
            raise GatewayTimeoutError(
                f"The pipeline '{name}' took more than {pipeline.timeout:g} s."
            ) from None
        await gate.serve(CHAT, last, _explained(send, run.timings))

    def close(self) -> None:
        """Let go of connections and files."""
        self._outside.close()
        self._stores.close()

    # -- used by runs -----------------------------------------------------------------------------

    @property
    def outside(self) -> Outside:
        """Other servers."""
        return self._outside

    @property
    def stores(self) -> Stores:
        """Where texts are found."""
        return self._stores

    def note(self, pipeline: str, timing: Timing) -> None:
        """A step has ended."""
        self._metrics.add(catalogue.PIPELINE_STEPS, (pipeline, timing.step, timing.outcome))
        self._metrics.histogram(catalogue.PIPELINE_TIME, (pipeline, timing.step)).observe(
            timing.seconds
        )
        fields = {
            "step": timing.step,
            "outcome": timing.outcome,
            "seconds": f"{timing.seconds:.3f}",
        }
        log.info("Pipeline %s", pipeline, extra={"fields": fields})

    def now(self) -> float:
        """Seconds."""
        return self._clock.monotonic()


class _Run:
    def __init__(
        self,
        shared: Pipelines,
        pipeline: Pipeline,
        templates: Templates,
        body: Mapping[str, Any],
        gate: Gate,
    ) -> None:
        self._shared = shared
        self._pipeline = pipeline
        self._templates = templates
        self._body = body
        self._gate = gate
        self.timings: list[Timing] = []
        messages = body.get("messages")
        self._messages = messages if isinstance(messages, list) else []
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
            raise GatewayTimeoutError(
                f"The step '{step.name}' took more than {step.timeout:g} s."
            ) from None
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
            return await self._ask(step.name, step.llm)
        if step.retrieve is not None:
            return await self._retrieve(step.retrieve)
        if step.http is not None:
            headers = {name: str(value) for name, value in step.http.headers.items()}
            body = templates.text(step.http.body, values)
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

    async def _ask(self, name: str, step: LlmStep) -> dict[str, Any]:
        answer = await self._gate.ask(CHAT, self._request(step))
        try:
            found = msgspec.json.decode(answer.body)
            if answer.status != 200:
                raise BadRequestError(f"The step '{name}': {found['error']['message']}")
            choice = found["choices"][0]
            text = choice["message"].get("content") or ""
        except (msgspec.DecodeError, KeyError, TypeError, IndexError, AttributeError):
            raise BadGatewayError(f"The step '{name}' got an answer that cannot be read.") from None
        return {"text": text, "finish_reason": choice.get("finish_reason")}

    def _request(self, step: LlmStep) -> dict[str, Any]:
        messages: list[Any] = [
            {**message, "content": self._templates.text(message.get("content", ""), self._values)}
            for message in step.messages
        ]
        return {**step.parameters, "model": step.model, "messages": messages or self._messages}

    async def _retrieve(self, step: RetrieveStep) -> dict[str, Any]:
        query = self._templates.text(step.query, self._values)
        hits = await self._shared.stores.nearest(step.store, query, step.top, self._gate.ask)
        return {"hits": hits, "text": "\n\n".join(hit["text"] for hit in hits)}


def _explained(send: Send, timings: list[Timing]) -> Send:
    """Says in a header what the steps before took: `found ok 0.012 s; kind skipped 0.000 s`."""
    words = "; ".join(f"{t.step} {t.outcome} {t.seconds:.3f} s" for t in timings)
    line = (b"x-headrace-pipeline", words.encode())

    async def explained(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), line]}
        await send(message)

    return explained


def _checked(pipeline: Pipeline) -> Templates:
    """The templates of a pipeline. Raises ConfigError."""
    templates = Templates(pipeline.max_text)
    for outer in pipeline.steps:
        for step in outer.walk():
            texts = [step.when]
            if step.llm is not None:
                texts += [message.get("content", "") for message in step.llm.messages]
            if step.retrieve is not None:
                texts.append(step.retrieve.query)
            if step.http is not None:
                texts.append(step.http.body)
            for text in texts:
                templates.check(text)
    return templates


def _last_user_text(messages: list[Any]) -> str:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""
