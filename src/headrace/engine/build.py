"""The composition root: the only module that knows every concrete class of the engine."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.config.engine import EngineConfig, ModelConfig, SchedulerConfig
from headrace.config.env import cache_home
from headrace.core.clock import Clock
from headrace.core.errors import ModelLoadError
from headrace.core.model_info import ModelInfo, Task
from headrace.core.pooling import PoolKind
from headrace.core.request import Request
from headrace.engine.adapters import adapter_shelf, adapter_table
from headrace.engine.engine import Engine, Executor
from headrace.engine.executor.attention_mass import MassProgram
from headrace.engine.executor.executor import (
    ExecutorParts,
    ModelExecutor,
    OverlappedExecutor,
    TextExecutor,
)
from headrace.engine.executor.kv_storage import KVStorage
from headrace.engine.executor.pooler import Pooler
from headrace.engine.executor.sizing import Sizing
from headrace.engine.executor.tier import BlockTier
from headrace.engine.grammar_gate import GrammarGate
from headrace.engine.kv_exchange import KVExchange
from headrace.engine.kv_memory import create_ledger, create_tier, fit, kv_layout, max_chunk
from headrace.engine.scheduler.intake import no_adapters
from headrace.engine.scheduler.plan import MAX_SCORED
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.texts import TextBounds, TextLane
from headrace.engine.scheduler.totals import Totals
from headrace.grammar.compiler import Encode, GrammarCompiler
from headrace.grammar.vocabulary import Vocabulary
from headrace.kernels import topology
from headrace.kernels.dispatch import create_backend
from headrace.kernels.ops import Backend
from headrace.kernels.values import StepLimits
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.decoder import Decoder
from headrace.modeling.pooling import default_pooling
from headrace.modeling.registry import describe
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.modeling.weights.load import LoadedWeights, load_parameters
from headrace.modeling.weights.sources import SHORT_NAMES, resolve

#: Memory for logits of prompts whose log-probabilities are wanted, and the rows that there are at least.
_SCORED_BYTES = 32 * 2**20
_MIN_SCORED = 16

log = logging.getLogger("headrace.engine")


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine that is ready to step, and what its server must know of it."""

    engine: Engine
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class _Model:
    """A loaded model, before memory is given to it."""

    checkpoint: Checkpoint
    spec: ModelSpec
    weights: LoadedWeights


def build_engine(
    config: EngineConfig,
    clock: Clock,
    report: Callable[[str], None],
    *,
    record_kv_events: bool = False,
) -> BuiltEngine:
    """Resolve, load, size, record. `report` is told the name of each phase as it begins.

    With `record_kv_events` the engine remembers which blocks it stores and removes, for a publisher.
    Raises ConfigError (ModelLoadError, DownloadError) for what the operator can mend.
    """
    phases = _Phases(clock, report)
    phases.begin("resolve")
    path = resolve(config.model.model)
    phases.begin("kernels")
    backend = create_backend(
        config.executor.backend, isa=config.executor.isa, threads=config.executor.threads
    )
    _warn_of_threads(backend.num_threads)
    phases.begin("weights")
    model = _load(config.model, path, backend)
    phases.begin("memory")
    spec, sizing = fit(config, model.spec, model.weights)
    phases.begin("record")
    compiler = GrammarCompiler(partial(_vocabulary, model))
    table = adapter_table(config.model, spec, backend)
    tier = create_tier(config.memory)
    storage = _storage(config, spec, sizing, backend, tier)
    executor, step_bytes = _executor(config, spec, model, backend, clock, storage, compiler, table)
    if table is not None:
        phases.begin("adapters")
    names = served_names(config.model, model.checkpoint.path)
    shelf = adapter_shelf(config.model, spec, table, executor.call, reserved=names)
    phases.end()
    place_of = no_adapters if shelf is None else shelf.index_of
    ledger = create_ledger(
        config, spec, model.weights.digest, sizing, record_events=record_kv_events
    )
    scheduler = Scheduler(
        config.scheduler,
        ledger,
        max_context=sizing.max_context,
        max_scored=_max_scored(spec),
        adapters=place_of,
        tier=tier,
        embedding_size=spec.hidden_size,
    )
    engine = Engine(
        scheduler,
        executor,
        clock,
        gate=GrammarGate(compiler),
        texts=_text_lane(config.scheduler, sizing.max_context, scheduler.totals, place_of),
        makes_text=spec.encoder is None,
        adapters=shelf,
        exchange=None if storage is None else KVExchange(ledger, storage, tier, executor.call),
    )
    info = _info(config, model, backend, sizing, phases.seconds, step_bytes)
    return BuiltEngine(engine, info if shelf is None else shelf.described(info))


def served_names(config: ModelConfig, path: Path) -> tuple[str, ...]:
    """`--served-model-name`, else the short name, else the file's or directory's stem."""
    if config.served_model_name:
        return config.served_model_name
    if config.model in SHORT_NAMES:
        return (config.model,)
    return (path.stem if path.is_file() else path.name,)


class _Phases:
    """Seconds of each phase of the start, in order."""

    def __init__(self, clock: Clock, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._report = report
        self._name = ""
        self._began = 0.0
        self.seconds: dict[str, float] = {}

    def begin(self, name: str) -> None:
        self.end()
        self._name, self._began = name, self._clock.monotonic()
        self._report(name)

    def end(self) -> None:
        if self._name:
            self.seconds[self._name] = self._clock.monotonic() - self._began
            self._name = ""


def _load(config: ModelConfig, path: Path, backend: Backend) -> _Model:
    checkpoint = open_checkpoint(path)
    spec, parameter_specs = describe(checkpoint)
    weights = load_parameters(
        checkpoint,
        parameter_specs,
        quantize=config.quantize,
        cache=cache_home() / "packed" if config.cache_packed else None,
        isa=backend.isa,
    )
    return _Model(checkpoint, spec, weights)


def _storage(
    config: EngineConfig, spec: ModelSpec, sizing: Sizing, backend: Backend, tier: BlockTier | None
) -> KVStorage | None:
    """None for an encoder, which keeps no keys and values."""
    if spec.encoder is not None:
        return None
    layout = kv_layout(config.memory, spec, sizing.num_blocks)
    return KVStorage(backend.create_kv_cache(layout), tier)


def _text_lane(
    scheduler: SchedulerConfig,
    max_context: int,
    totals: Totals,
    place_of: Callable[[Request], int],
) -> TextLane:
    bounds = text_bounds(scheduler, max_context)
    return TextLane(bounds, totals, aging=scheduler.priority_aging, adapters=place_of)


def _executor(
    config: EngineConfig,
    spec: ModelSpec,
    model: _Model,
    backend: Backend,
    clock: Clock,
    storage: KVStorage | None,
    compiler: GrammarCompiler,
    table: AdapterTable | None,
) -> tuple[Executor, int]:
    """And the bytes of its arena."""
    scheduler = config.scheduler
    bounds = text_bounds(scheduler, spec.max_context)
    pooler = Pooler(
        spec,
        model.weights,
        backend,
        max_tokens=max(bounds.max_tokens, bounds.max_text_tokens),
        max_texts=bounds.max_texts,
        adapters=table,
    )
    if storage is None:
        return _overlapped(TextExecutor(pooler, clock), scheduler), 0
    limits = step_limits(scheduler, spec)
    decoder = Decoder(spec, model.weights, adapters=table)
    recorded = decoder.record(backend, limits, storage.cache)
    if recorded.logits is None:
        raise ModelLoadError("The model has no output head.")

    def record_mass(max_blocks: int) -> MassProgram:
        again = decoder.record(backend, limits, storage.cache, mass_blocks=max_blocks)
        assert again.logits is not None
        return MassProgram(again.program, again.logits, again.mass)

    inner = ModelExecutor(
        ExecutorParts(backend, recorded.program, recorded.logits, storage, record_mass),
        clock,
        max_num_seqs=scheduler.max_num_seqs,
        max_tokens=limits.max_tokens,
        max_context=spec.max_context,
        compiler=compiler,
        pooler=pooler,
        num_adapters=0 if table is None else table.capacity,
    )
    return _overlapped(inner, scheduler), recorded.program.arena_bytes


def _overlapped(inner: ModelExecutor | TextExecutor, scheduler: SchedulerConfig) -> Executor:
    return OverlappedExecutor(inner) if scheduler.max_uncommitted_plans > 1 else inner


def _pooling(config: ModelConfig, model: _Model) -> PoolKind:
    """What the operator says, else the files."""
    if config.pooling != "auto":
        return PoolKind(config.pooling)
    return default_pooling(model.checkpoint, model.spec)


def text_bounds(scheduler: SchedulerConfig, max_context: int) -> TextBounds:
    """Of steps with texts to be pooled."""
    return TextBounds(
        max_tokens=scheduler.max_num_batched_tokens,
        max_texts=scheduler.max_num_seqs,
        max_text_tokens=min(scheduler.max_text_tokens, max_context),
    )


def _tasks(spec: ModelSpec) -> tuple[Task, ...]:
    if spec.encoder is None:
        return Task.GENERATE, Task.EMBED
    return (Task.SCORE, Task.EMBED) if spec.encoder.num_labels == 1 else (Task.EMBED,)


def _vocabulary(model: _Model) -> tuple[Vocabulary, Encode]:
    """Of the model's own tokenizer. Imported and read when the first grammar comes."""
    from headrace.preprocess.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model.checkpoint.path)
    return tokenizer.vocabulary(model.spec.vocab_size), partial(tokenizer.encode, add_special=False)


def _info(
    config: EngineConfig,
    model: _Model,
    backend: Backend,
    sizing: Sizing,
    phases: dict[str, float],
    step_bytes: int,
) -> ModelInfo:
    return ModelInfo(
        names=served_names(config.model, model.checkpoint.path),
        source=config.model.model,
        # Of a directory that holds one GGUF file, that file: it has the tokenizer too.
        path=str(model.checkpoint.path),
        family=model.spec.family,
        digest=model.weights.digest,
        vocab_size=model.spec.vocab_size,
        max_context=sizing.max_context,
        block_size=config.memory.block_size,
        num_blocks=sum(sizing.num_blocks),
        kv_bytes=sizing.kv_bytes,
        kv_format=str(config.memory.kv_format),
        weight_bytes=model.weights.num_bytes,
        step_bytes=step_bytes,
        parameters=model.weights.num_elements,
        tasks=_tasks(model.spec),
        pooling=_pooling(config.model, model),
        normalizes=config.model.embedding_normalize,
        embedding_size=model.spec.hidden_size,
        max_text_tokens=text_bounds(config.scheduler, sizing.max_context).max_text_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        splits_prompts=config.scheduler.chunked_prefill,
        isa=backend.isa,
        threads=backend.num_threads,
        phases=phases,
        lines=(
            f"weights {model.weights.num_bytes / 2**20:.0f} MiB"
            f" ({'mapped from the packed cache' if model.weights.is_mapped else 'in memory'})",
            f"{sizing.explanation}, kept in {config.memory.kv_format}",
            f"activations {step_bytes / 2**20:.0f} MiB at most",
        ),
    )


def _warn_of_threads(num_threads: int) -> None:
    num_cpus = topology.detect().num_cpus
    if num_threads > num_cpus:
        log.warning(
            "%d threads share %d CPUs and wait for each other; fewer are faster (--threads)",
            num_threads,
            num_cpus,
        )


def step_limits(scheduler: SchedulerConfig, spec: ModelSpec) -> StepLimits:
    """Rows of the largest step."""
    max_tokens = max_chunk(scheduler, spec.max_context) + scheduler.max_num_seqs
    # No draft source yet: every sequence has one output row. With one, it is 1 + MAX_DRAFTS rows.
    return StepLimits(max_tokens, scheduler.max_num_seqs + _max_scored(spec))


def _max_scored(spec: ModelSpec) -> int:
    """Prompt tokens of one step that have log-probabilities: each takes a row of logits."""
    return max(_MIN_SCORED, min(MAX_SCORED, _SCORED_BYTES // (4 * spec.vocab_size)))
