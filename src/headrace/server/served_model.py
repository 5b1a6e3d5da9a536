"""One model that is served: its engine, what the HTTP process keeps for it, and who uses it now."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.model_info import ModelInfo
from headrace.core.stats import ReplicaState
from headrace.engine.client import EngineClient
from headrace.engine.messages import Update
from headrace.grammar.checks import GrammarChecks
from headrace.observe.metrics import Metrics
from headrace.observe.recorder import EngineRecorder, RequestRecorder
from headrace.observe.timeline import Timeline
from headrace.preprocess.prepare import Preparer
from headrace.server.lora_root import LoraRoot


class ServedModel:
    """One engine and what the HTTP process keeps for it."""

    def __init__(
        self,
        client: EngineClient,
        metrics: Metrics,
        clock: Clock,
        *,
        lora_root: LoraRoot | None = None,
        names: tuple[str, ...] = (),
        timeline_steps: int = 0,
    ) -> None:
        """Adapters may be loaded from below `lora_root` while it is served; None: they may not.

        `names` are those that requests may use also while it is not loaded.
        """
        self.client = client
        self.lora_root = lora_root
        self._metrics = metrics
        self._clock = clock
        self._given_names = names
        self.timeline = Timeline(timeline_steps)
        # Until the model's name is known, what is recorded goes to a book that nobody reads.
        self.engine_metrics = EngineRecorder(Metrics(), "", clock)
        self.request_metrics = RequestRecorder(Metrics(), "", clock)
        self.preparer: Preparer | None = None
        """Set once the model is known."""
        self.grammars: GrammarChecks | None = None
        """Set with `preparer`."""
        self.known: ModelInfo | None = None
        """What it was when it was loaded last; also while it is not."""
        self.closed: str | None = None
        """Why no new requests are taken, though its engine is ready: it is about to be parked or unloaded."""
        self.num_users = 0
        """Requests that hold it."""
        self.last_used = clock.monotonic()
        self._unused = asyncio.Event()
        self._unused.set()

    # -- what it is -------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo | None:
        """Facts of the model, while it is loaded."""
        return self.client.info

    @property
    def name(self) -> str:
        """The first of its names; empty while none is known."""
        return next(iter(self.base_names), "")

    @property
    def base_names(self) -> tuple[str, ...]:
        """Names of the model itself, without its adapters'."""
        info = self.info or self.known
        return self._given_names if info is None else info.names

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use: the model's, and those of its adapters."""
        info = self.info or self.known
        adapters = () if info is None else info.adapters
        return (*self.base_names, *(adapter.name for adapter in adapters))

    @property
    def state(self) -> ReplicaState:
        """Of its engine; draining also while requests are waited for that hold it."""
        state = self.client.state
        return ReplicaState.DRAINING if self.closed and state is ReplicaState.READY else state

    @property
    def unready_reason(self) -> str | None:
        """Why it cannot serve now; None when it can."""
        if self.closed is not None and self.client.state is ReplicaState.READY:
            return self.closed
        if self.client.unready_reason is None and self.preparer is None:
            return "The tokenizer is loading."
        return self.client.unready_reason

    @property
    def idle_seconds(self) -> float:
        """Since a request held it last; 0.0 while one does."""
        return 0.0 if self.num_users else self._clock.monotonic() - self.last_used

    @property
    def is_open(self) -> bool:
        """It takes requests. An engine that makes no steps does too: its watchdog decides what becomes of them."""
        is_ready = self.preparer is not None and self.client.state is ReplicaState.READY
        return is_ready and self.closed is None

    # -- who uses it ------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, it is neither parked nor unloaded unless somebody runs out of patience."""
        self.num_users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self.num_users -= 1
            self.last_used = self._clock.monotonic()
            if not self.num_users:
                self._unused.set()

    async def wait_unused(self, patience: float) -> bool:
        """Wait until nobody holds it, for at most `patience` seconds; whether it came to that."""
        try:
            await asyncio.wait_for(self._unused.wait(), patience)
        except TimeoutError:
            return not self.num_users
        return True

    def check_open(self) -> None:
        """Raises UnavailableError while it takes no requests."""
        if not self.is_open:
            raise UnavailableError(self.unready_reason or "The model is not ready.")

    # -- its numbers ------------------------------------------------------------------------------

    def name_metrics(self, info: ModelInfo, phases: dict[str, float]) -> None:
        """The model is loaded: its metrics begin, or go on."""
        self.engine_metrics = EngineRecorder(self._metrics, info.names[0], self._clock)
        self.engine_metrics.became_ready(info, phases)
        self.request_metrics = RequestRecorder(
            self._metrics, info.names[0], self._clock, self.timeline
        )

    def on_update(self, update: Update) -> None:
        """For EngineClient."""
        self.engine_metrics.record(update.stats, update.steps)
        self.timeline.note_steps(update.steps)

    def restarted(self, info: ModelInfo) -> None:
        """The engine process was started again: what its predecessor ran and held is gone.

        Told at once, and not with the first step: a router that believes in the old load sends nothing.
        """
        self.engine_metrics.restarted()
        self.engine_metrics.became_ready(info, info.phases)
