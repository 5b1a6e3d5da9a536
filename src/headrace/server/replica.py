"""One replica: its engines by model name, its bounds, its state. What every route works with."""

import asyncio
import logging
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ModelNotFoundError, UnavailableError
from headrace.core.events import FinishReason
from headrace.core.stats import LoadReport, ReplicaState
from headrace.grammar.checks import GrammarChecks
from headrace.observe import catalogue, model_metrics
from headrace.observe.load_report import load_report
from headrace.observe.metrics import Metrics
from headrace.observe.system import SystemMeter, Watched
from headrace.observe.tracing.otlp import open_tracer
from headrace.preprocess.prepare import Preparer
from headrace.preprocess.workers import Workers
from headrace.server.admission import Admission
from headrace.server.background import BackgroundResponses
from headrace.server.open_requests import OpenRequests
from headrace.server.response_store import ResponseStore
from headrace.server.resume import ResumableStreams
from headrace.server.seats import Seats
from headrace.server.served_model import ServedModel
from headrace.web.bodies import BodyBudget
from headrace.web.keys import KeyRing

if TYPE_CHECKING:
    from headrace.server.batches.desk import BatchDesk
    from headrace.server.model_life import ModelLife
    from headrace.server.shelf import Shelf

log = logging.getLogger("headrace.server")


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
        """Engines by the name of their configuration; the first is the default."""
        self.lives: dict[str, ModelLife] = {}
        """What loads, parks and unloads them, by the same names."""
        self.shelf: Shelf | None = None
        """Loads them on demand, where there are several."""
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
        """The model of this name, loaded or not; without one, the default. Raises for unknown names.

        A strict server wants a name. With `accept_any_model` the only model answers to every name.
        """
        if name is None and self.config.strict:
            raise BadRequestError(
                "'model' is required: this server is strict.",
                param="model",
                code="missing_required_parameter",
            )
        models = list(self.models.values())
        if models and (name is None or (self.config.accept_any_model and len(models) == 1)):
            return models[0]
        for model in models:
            if name in model.names:
                return model
        if not models or any(not model.names for model in models):
            raise UnavailableError(self.unready_reason or "The model is loading.")
        raise ModelNotFoundError(name or "", tuple(n for model in models for n in model.names))

    async def obtain(self, name: str | None, held: ExitStack) -> tuple[ServedModel, float | None]:
        """The model of this name, ready to serve and held by `held`; and how long it was waited for.

        None: it was there. Raises as `find`, and UnavailableError for what cannot serve now.
        """
        model = self.find(name)
        held.enter_context(model.held())
        seconds = None
        if self.shelf is not None and not model.is_open:
            seconds = await self.shelf.ready(model)
        model.check_open()
        return model, seconds

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
        self.count_places()

    def count_places(self) -> None:
        """Models were loaded or unloaded: other numbers of requests can run at once."""
        infos = [m.info for m in self.models.values() if m.info is not None]
        self.admission.max_running = max(1, sum(info.max_num_seqs for info in infos))

    def processes(self) -> list[Watched]:
        """The HTTP process, and the engines'."""
        engines = [
            Watched("engine", model.client.pid, model.name) for model in self.models.values()
        ]
        return [Watched("server", os.getpid()), *engines]

    # -- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> ReplicaState:
        """One word for all engines; of models that are loaded on demand, those that are kept count."""
        if self.is_draining:
            return ReplicaState.DRAINING
        if not self.models:
            return ReplicaState.EMPTY
        if self.shelf is not None:
            return ReplicaState.READY if self.shelf.is_ready else ReplicaState.LOADING
        states = {model.state for model in self.models.values()}
        return states.pop() if len(states) == 1 else ReplicaState.LOADING

    @property
    def unready_reason(self) -> str | None:
        """Why `/readyz` says no, in one sentence; None when it says yes. O(1) in requests."""
        if self.is_draining:
            return "The server is shutting down."
        if self.shelf is not None:
            is_ready = self.shelf.is_ready
            return self.admission.full_reason if is_ready else "Models are loading."
        for model in self.models.values():
            if model.unready_reason is not None:
                return model.unready_reason
        return self.admission.full_reason if self.models else "No model is loaded."

    def load(self) -> LoadReport:
        """The sums over all engines, with the state of the whole and what each of them does."""
        loads = [
            model.engine_metrics.load(
                name=model.name, state=model.state, info=model.info, idle=model.idle_seconds
            )
            for model in self.models.values()
        ]
        return load_report(
            loads,
            state=self.state,
            role=self.config.role,
            models=tuple(name for model in self.models.values() for name in model.base_names),
            uptime=self.clock.monotonic() - self._started,
            version=__version__,
        )

    def note_states(self) -> None:
        """Set the gauges that say what is ready; called when they are about to be read."""
        self.metrics.set(catalogue.READY, (), float(self.unready_reason is None))
        for model in self.models.values():
            if not model.name:
                continue
            for state in ReplicaState:
                labels = (model.name, state.value)
                self.metrics.set(model_metrics.MODEL_STATE, labels, float(model.state is state))
            taken = 0 if model.info is None else model.info.memory_bytes
            self.metrics.set(model_metrics.MODEL_MEMORY, (model.name,), taken)

    def _closed_reason(self) -> str | None:
        if self.is_draining:
            return "The server is shutting down; send the request elsewhere."
        if self.shelf is not None or any(model.is_open for model in self.models.values()):
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
        if self.shelf is not None:
            await self.shelf.close()
        await asyncio.gather(*(model.client.close() for model in self.models.values()))
        for model in self.models.values():
            if model.grammars is not None:
                await model.grammars.close()
        self.workers.close()


def counted(num_requests: int) -> str:
    """A number of requests, as one says it."""
    return "1 request" if num_requests == 1 else f"{num_requests} requests"
