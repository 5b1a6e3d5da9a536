"""One replica: its engines by model name, its bounds, its state. What every route works with."""

import asyncio
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ModelNotFoundError, UnavailableError
from headrace.core.events import FinishReason
from headrace.core.model_info import ModelInfo
from headrace.core.stats import LoadReport, ReplicaState
from headrace.engine.client import EngineClient
from headrace.engine.messages import Update
from headrace.grammar.checks import GrammarChecks
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics
from headrace.observe.recorder import EngineRecorder, RequestRecorder
from headrace.observe.system import SystemMeter, Watched
from headrace.observe.tracing.otlp import open_tracer
from headrace.preprocess.prepare import Preparer
from headrace.preprocess.workers import Workers
from headrace.server.admission import Admission
from headrace.server.background import BackgroundResponses
from headrace.server.lora_root import LoraRoot
from headrace.server.open_requests import OpenRequests
from headrace.server.response_store import ResponseStore
from headrace.server.resume import ResumableStreams
from headrace.server.seats import Seats
from headrace.web.bodies import BodyBudget
from headrace.web.keys import KeyRing

if TYPE_CHECKING:
    from headrace.server.batches.desk import BatchDesk

log = logging.getLogger("headrace.server")


class ServedModel:
    """One engine and what the HTTP process keeps for it."""

    def __init__(
        self,
        client: EngineClient,
        metrics: Metrics,
        clock: Clock,
        *,
        lora_root: LoraRoot | None = None,
    ) -> None:
        """Adapters may be loaded from below `lora_root` while it is served; None: they may not."""
        self.client = client
        self.lora_root = lora_root
        self._metrics = metrics
        self._clock = clock
        # Until the model's name is known, what is recorded goes to a book that nobody reads.
        self.engine_metrics = EngineRecorder(Metrics(), "", clock)
        self.request_metrics = RequestRecorder(Metrics(), "", clock)
        self.preparer: Preparer | None = None
        """Set once the model is known."""
        self.grammars: GrammarChecks | None = None
        """Set with `preparer`."""

    def name_metrics(self, info: ModelInfo, phases: dict[str, float]) -> None:
        """The model is loaded for the first time: its metrics begin."""
        self.engine_metrics = EngineRecorder(self._metrics, info.names[0], self._clock)
        self.engine_metrics.became_ready(info, phases)
        self.request_metrics = RequestRecorder(self._metrics, info.names[0], self._clock)

    def on_update(self, update: Update) -> None:
        """For EngineClient."""
        self.engine_metrics.record(update.stats, update.steps)

    def restarted(self, info: ModelInfo) -> None:
        """The engine process was started again: what its predecessor ran and held is gone.

        Told at once, and not with the first step: a router that believes in the old load sends nothing.
        """
        self.engine_metrics.restarted()
        self.engine_metrics.became_ready(info, info.phases)

    @property
    def info(self) -> ModelInfo | None:
        """Facts of the model, once it is loaded."""
        return self.client.info

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use."""
        info = self.info
        return () if info is None else (*info.names, *(a.name for a in info.adapters))

    @property
    def unready_reason(self) -> str | None:
        """Why it cannot serve now; None when it can."""
        if self.client.unready_reason is None and self.preparer is None:
            return "The tokenizer is loading."
        return self.client.unready_reason


class Replica:
    """Everything behind the routes. Lives on one event loop."""

    def __init__(self, config: ServerConfig, clock: Clock, metrics: Metrics) -> None:
        """Raises ConfigError for API keys or a directory that cannot be read."""
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.system = SystemMeter(metrics)
        self.tracer = open_tracer(config.tracing, "headrace-server", clock)
        self.keys = KeyRing(config.security, clock)
        self.workers = Workers(config.tokenizer_threads)
        self.models: dict[str, ServedModel] = {}
        """Engines by the name of their configuration."""
        self.admission = Admission(
            clock,
            max_queued_requests=config.max_queued_requests,
            max_queued_tokens=config.max_queued_tokens,
            closed_reason=self._closed_reason,
            on_reject=self.note_rejection,
        )
        self.open_requests = OpenRequests()
        self.seats = Seats()
        self.streams = ResumableStreams(
            window=config.resume_window,
            linger=config.resume_linger,
            max_streams=config.max_resumable_streams,
        )
        self.batches = self._open_batches()
        self.responses = ResponseStore(
            clock,
            max_responses=config.max_stored_responses,
            max_bytes=config.max_stored_bytes,
            ttl=config.stored_response_ttl,
        )
        self.background = BackgroundResponses()
        self.bodies = BodyBudget(config.max_buffered_bytes, self.note_rejection)
        self.created = int(clock.wall())
        self._started = clock.monotonic()
        self.is_draining = False
        metrics.set(catalogue.BUILD, (__version__,), 1.0)
        metrics.set(catalogue.PROCESS_START, (), clock.wall())

    def note_rejection(self, reason: str) -> None:
        """Count a request that was turned away."""
        self.metrics.add(catalogue.REQUESTS_REJECTED, (reason,))

    def _open_batches(self) -> "BatchDesk | None":
        directory = self.config.batches.batch_dir
        if directory is None:
            return None
        # Most servers have none, and do not wait for SQLite.
        from headrace.server.batches import desk

        return desk.BatchDesk(directory, self.config, self.clock, self.admission, self.keys)

    # -- models -----------------------------------------------------------------------------------

    def find(self, name: str | None) -> ServedModel:
        """The model of this name; without one, the only model. Raises for unknown and loading ones.

        A strict server wants a name. With `accept_any_model` the only model answers to every name.
        """
        if name is None and self.config.strict:
            raise BadRequestError(
                "'model' is required: this server is strict.",
                param="model",
                code="missing_required_parameter",
            )
        if name is None or (self.config.accept_any_model and len(self.models) == 1):
            if len(self.models) != 1:
                raise BadRequestError(
                    "'model' is required, because several models are served here.", param="model"
                )
            return next(iter(self.models.values()))
        for model in self.models.values():
            if name in model.names:
                return model
        if any(model.info is None for model in self.models.values()):
            raise UnavailableError("The model is loading.")
        raise ModelNotFoundError(name, tuple(n for m in self.models.values() for n in m.names))

    def bind(self, model: ServedModel, preparer: Preparer) -> None:
        """The model is loaded and its tokenizer too: it can serve."""
        model.preparer = preparer
        if model.grammars is None:
            model.grammars = GrammarChecks(
                partial(preparer.tokenizer.vocabulary, preparer.info.vocab_size),
                processes=self.config.grammar_processes,
                timeout=self.config.grammar_timeout,
                max_waiting=self.config.max_queued_requests,
            )
        infos = [m.info for m in self.models.values() if m.info is not None]
        self.admission.max_running = max(1, sum(info.max_num_seqs for info in infos))

    def processes(self) -> list[Watched]:
        """The HTTP process, and the engines'."""
        engines = [
            Watched("engine", model.client.pid, model.info.names[0] if model.info else "")
            for model in self.models.values()
        ]
        return [Watched("server", os.getpid()), *engines]

    # -- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> ReplicaState:
        """One word for all engines."""
        if self.is_draining:
            return ReplicaState.DRAINING
        if not self.models:
            return ReplicaState.EMPTY
        if any(model.client.info is None for model in self.models.values()):
            return ReplicaState.LOADING
        states = {model.client.state for model in self.models.values()}
        return states.pop() if len(states) == 1 else ReplicaState.LOADING

    @property
    def unready_reason(self) -> str | None:
        """Why `/readyz` says no, in one sentence; None when it says yes. O(1) in requests."""
        if self.is_draining:
            return "The server is shutting down."
        for model in self.models.values():
            if model.unready_reason is not None:
                return model.unready_reason
        return self.admission.full_reason if self.models else "No model is loaded."

    def load(self) -> LoadReport:
        """The report of the first engine, with the state of the whole."""
        model = next(iter(self.models.values()))
        return model.engine_metrics.load(
            state=self.state,
            role=self.config.role,
            info=model.info,
            uptime=self.clock.monotonic() - self._started,
            version=__version__,
        )

    def _closed_reason(self) -> str | None:
        # A stalled engine still takes requests: its watchdog decides what becomes of them.
        if self.is_draining:
            return "The server is shutting down; send the request elsewhere."
        if any(
            m.preparer is not None and m.client.state is ReplicaState.READY
            for m in self.models.values()
        ):
            return None
        return self.unready_reason or "The server is not ready."

    # -- end --------------------------------------------------------------------------------------

    async def drain(self, patience: float) -> None:
        """Take nothing new, let what runs finish; after `patience` seconds, end it properly."""
        self.is_draining = True
        if self.batches is not None:
            await self.batches.stop()
        if self.admission.num_open:
            log.info("Draining %s, for at most %.0f s", counted(self.admission.num_open), patience)
        if not await self.admission.wait_empty(patience):
            log.warning("Cutting %s short", counted(self.admission.num_open))
            self.end_open()

    def end_open(self) -> None:
        """Every open answer gets its end now."""
        self.is_draining = True
        for model in self.models.values():
            model.client.finish_open(FinishReason.SHUTDOWN)

    async def close(self) -> None:
        """Stop the engines."""
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.exporter.close)
        if self.batches is not None:
            await self.batches.close()
        await asyncio.gather(*(model.client.close() for model in self.models.values()))
        for model in self.models.values():
            if model.grammars is not None:
                await model.grammars.close()
        self.workers.close()


def counted(num_requests: int) -> str:
    """A number of requests, as one says it."""
    return "1 request" if num_requests == 1 else f"{num_requests} requests"
