"""All declared pipelines, and running one for a request: step after step, the last one to the client."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from headrace.config.fleet.pipelines import PipelinesConfig
from headrace.core.clock import Clock
from headrace.core.errors import GatewayTimeoutError
from headrace.fleet.gateway.limit import Limit, within
from headrace.fleet.gateway.pipelines.outside import Outside
from headrace.fleet.gateway.pipelines.run import CHAT, Gate, Run, Timing, checked
from headrace.fleet.gateway.pipelines.stores import Stores
from headrace.fleet.gateway.tools.told import ToldStream
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics
from headrace.web.asgi import Message, Send

#: Seconds beyond its time after which the last step is ended from outside.
_GRACE: Final = 2.0

log = logging.getLogger("headrace.fleet.pipelines")


class Pipelines:
    """All pipelines of one configuration."""

    def __init__(self, config: PipelinesConfig, metrics: Metrics, clock: Clock) -> None:
        """Raises ConfigError for templates that do not compile, and stores that cannot be opened."""
        self._config = config
        self._items = {pipeline.name: pipeline for pipeline in config.items}
        self._metrics = metrics
        self._clock = clock
        largest = max((pipeline.max_text for pipeline in config.items), default=1024)
        self._templates = {name: checked(pipeline) for name, pipeline in self._items.items()}
        self._outside = Outside(largest)
        self._stores = Stores(config.vectors, self._outside)
        self._num_running = 0
        self._is_retired = False

    def renewed(self, config: PipelinesConfig) -> "Pipelines":
        """Those of another configuration; the same where nothing has changed. Raises ConfigError."""
        return self if config == self._config else Pipelines(config, self._metrics, self._clock)

    @property
    def names(self) -> tuple[str, ...]:
        """What clients can ask for."""
        return tuple(self._items)

    @property
    def doubts(self) -> list[str]:
        """What steps will miss until it is there, as it was at first."""
        return self._stores.waiting

    def knows(self, model: str) -> bool:
        """There is a pipeline of this name."""
        return model in self._items

    async def run(self, name: str, body: Mapping[str, Any], gate: Gate, send: Send) -> None:
        """Answer a chat completion for a pipeline's name. Raises HeadraceError before the first byte."""
        pipeline = self._items[name]
        run = Run(self, pipeline, self._templates[name], body, gate)
        now = self.now()
        limit = Limit(
            now + pipeline.timeout, f"The pipeline '{name}' took more than {pipeline.timeout:g} s."
        )
        self._num_running += 1
        try:
            last = await within(limit, run.prepare(), now)
        finally:
            self._num_running -= 1
            self._close_if_over()
        stream = ToldStream(_explained(send, run.timings))
        try:
            # Whoever makes the answer ends it in time, and puts it down as such. What it only listens to may take longer.
            late = limit._replace(at=limit.at + _GRACE)
            await within(late, gate.serve(CHAT, last, stream.pass_on, limit), self.now())
        except GatewayTimeoutError as error:
            if not stream.has_begun:
                raise
            if last.get("stream") is True and not stream.is_over:
                await stream.break_off(error)

    def retire(self) -> None:
        """Others take their place: close as soon as nothing runs."""
        self._is_retired = True
        self._close_if_over()

    def close(self) -> None:
        """Let go of connections and files."""
        self._outside.close()
        self._stores.close()

    def _close_if_over(self) -> None:
        if self._is_retired and not self._num_running:
            self.close()

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


def _explained(send: Send, timings: list[Timing]) -> Send:
    """Says in a header what the steps before took: `found ok 0.012 s; kind skipped 0.000 s`."""
    words = "; ".join(f"{t.step} {t.outcome} {t.seconds:.3f} s" for t in timings)
    line = (b"x-headrace-pipeline", words.encode())

    async def explained(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), line]}
        await send(message)

    return explained
