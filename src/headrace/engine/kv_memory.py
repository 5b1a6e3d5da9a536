"""How much memory keys and values get, in which layout, and the ledger that counts it."""

from headrace.config.engine import EngineConfig, MemoryConfig, SchedulerConfig
from headrace.config.units import parse_size
from headrace.core.errors import ConfigError
from headrace.engine.executor.sizing import GroupCost, Sizing, SizingFacts, no_kv, size_kv
from headrace.engine.executor.tier import MemoryTier
from headrace.engine.memory.hashing import RootKey
from headrace.engine.memory.ledger import KVLedger
from headrace.kernels import topology
from headrace.kernels.values import DType, KVLayout
from headrace.modeling.identity import kv_identity
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.load import LoadedWeights


def fit(config: EngineConfig, full: ModelSpec, weights: LoadedWeights) -> tuple[ModelSpec, Sizing]:
    """`full`, a model, at the context that it is served with, and the KV memory for that.

    A shorter context turns windows that no longer bite into full attention, which joins KV groups, so
    memory is sized for the groups that are really there. Every round has fewer groups than the last.
    """
    spec = full
    wanted = config.model.max_context
    if spec.encoder is not None and wanted <= spec.max_context:
        spec = spec.with_max_context(wanted or spec.max_context)
        return spec, no_kv(spec.max_context)
    if wanted > spec.max_context:
        raise ConfigError(
            f"--max-context {wanted} is more than this model's context of {spec.max_context} tokens."
        )
    if wanted:
        spec = spec.with_max_context(wanted)
    while True:
        sizing = _size(config, full, spec, weights)
        fitted = full.with_max_context(sizing.max_context)
        if fitted.kv_groups() == spec.kv_groups():
            return fitted, sizing
        spec = fitted


def _size(config: EngineConfig, full: ModelSpec, spec: ModelSpec, weights: LoadedWeights) -> Sizing:
    memory = config.memory
    layout = kv_layout(memory, spec, tuple(1 for _ in spec.kv_groups()))
    groups = tuple(
        GroupCost(group.window, len(group.layers) * layout.bytes_per_token_layer)
        for group in spec.kv_groups()
    )
    facts = SizingFacts(
        # Weights in memory of ours are taken already; mapped ones lie in the page cache, which is free.
        available_bytes=topology.available_memory()
        + (0 if weights.is_mapped else weights.num_bytes),
        weight_bytes=weights.num_bytes,
        groups=groups,
        block_size=memory.block_size,
        model_context=full.max_context,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_chunk=max_chunk(config.scheduler, spec.max_context),
    )
    kv_bytes = None if memory.kv_memory == "auto" else parse_size(memory.kv_memory)
    return size_kv(
        facts,
        kv_bytes=kv_bytes,
        memory_utilization=memory.memory_utilization,
        wanted_context=config.model.max_context,
    )


def create_ledger(
    config: EngineConfig, spec: ModelSpec, digest: str, sizing: Sizing, *, record_events: bool
) -> KVLedger:
    scheduler = config.scheduler
    in_flight = scheduler.max_num_batched_tokens * scheduler.max_uncommitted_plans
    return KVLedger(
        sizing.num_blocks,
        config.memory.block_size,
        tuple(group.window for group in spec.kv_groups()),
        key=RootKey(
            weights_digest=bytes.fromhex(digest),
            model_digest=kv_identity(spec),
            kv_format=config.memory.kv_format,
        ),
        prefix_cache=config.memory.prefix_cache,
        max_uncommitted_tokens=in_flight if scheduler.chunked_prefill else 0,
        record_events=record_events,
        has_tier=has_tier(config.memory),
    )


def kv_layout(memory: MemoryConfig, spec: ModelSpec, num_blocks: tuple[int, ...]) -> KVLayout:
    return KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        block_size=memory.block_size,
        dtype=DType(memory.kv_format),
        layer_groups=spec.layer_groups(),
        num_blocks=num_blocks,
    )


def max_chunk(scheduler: SchedulerConfig, max_context: int) -> int:
    """Most tokens that the scheduler may put into one step, one of each running sequence aside."""
    if scheduler.chunked_prefill:
        return scheduler.max_num_batched_tokens
    return max(scheduler.max_num_batched_tokens, max_context)


def create_tier(memory: MemoryConfig) -> MemoryTier | None:
    """The memory below the cache, if it is to have any."""
    return MemoryTier(parse_size(memory.kv_tier_memory)) if has_tier(memory) else None


def has_tier(memory: MemoryConfig) -> bool:
    """Blocks can be loaded, and are stored; without a prefix cache none has a name to find it by."""
    return memory.prefix_cache and parse_size(memory.kv_tier_memory) > 0
