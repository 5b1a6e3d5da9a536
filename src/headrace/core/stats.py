"""Numbers that leave the engine as values: one record a step, and what `/load` answers."""

from enum import StrEnum

from msgspec import Struct


class ReplicaState(StrEnum):
    """States of a replica; changed by message only."""

    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    PARKED = "parked"


class ReplicaRole(StrEnum):
    """Which half of a request routers should send to a replica."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class EngineStats(Struct, frozen=True, kw_only=True):
    """Gauges and totals of the engine after a step. Totals never go down within one engine life."""

    steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    """Prompt tokens of waiting sequences that are not computed yet."""
    running_tokens: int = 0
    """Prompt tokens of running sequences not computed yet, plus output tokens they may still make."""
    oldest_wait: float = 0.0
    """Seconds that the longest waiting request has waited."""
    waits_until: float = 0.0
    """`Clock.monotonic` until which it makes no step on purpose (a batch that is not full); 0.0: it does not."""
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    """Unreferenced blocks that the prefix cache still holds (they count as free capacity)."""
    blocks_held: int = 0
    block_size: int = 0
    prompt_tokens: int = 0
    """Total of prompt tokens of admitted sequences, cached ones included."""
    cached_tokens: int = 0
    """Total of prompt tokens served from the prefix cache."""
    generated_tokens: int = 0
    preemptions: int = 0
    started: int = 0
    """Total of sequences taken in: always finished + running + waiting."""
    finished: dict[str, int] = {}
    """Total of finished sequences by finish reason."""
    integrity_failures: int = 0
    step_seconds: float = 0.0
    """Total of seconds inside steps."""


class StepStats(Struct, frozen=True, kw_only=True):
    """One step, for the timeline and the step histograms."""

    step_id: int
    started: float
    """`Clock.monotonic`."""
    seconds: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_sequences: int
    inputs_seconds: float = 0.0
    model_seconds: float = 0.0
    sample_seconds: float = 0.0


class ModelLoad(Struct, frozen=True, kw_only=True):
    """One model's part of `/load`."""

    name: str
    """What requests call it; where it has several names, the first."""
    state: ReplicaState
    num_running: int
    num_waiting: int
    max_num_seqs: int
    outstanding_tokens: int
    queued_tokens: int
    oldest_wait_seconds: float
    kv_blocks_total: int
    kv_blocks_used: int
    kv_usage: float
    prefix_hit_rate: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    memory_bytes: int
    """Of its weights, keys and values; 0 while it is not loaded."""
    idle_seconds: float
    """Since a request used it last; 0.0 while one does."""
    busy: float = 0.0
    """Share of the last 10 seconds that its engine spent in steps, 0..1."""


class LoadReport(Struct, frozen=True, kw_only=True):
    """The body of `/load`. The schema is frozen: fields may be added, never renamed or removed."""

    state: ReplicaState
    role: ReplicaRole
    models: tuple[str, ...]
    num_running: int
    num_waiting: int
    max_num_seqs: int
    outstanding_tokens: int
    """Prompt tokens not computed yet, waiting or running, plus output tokens still allowed."""
    queued_tokens: int
    oldest_wait_seconds: float
    kv_blocks_total: int
    kv_blocks_used: int
    kv_usage: float
    """Share of KV blocks that sequences hold, 0..1."""
    prefix_hit_rate: float
    """Cached share of the prompt tokens of the last minute, 0..1."""
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    """Both over the last 10 seconds."""
    uptime_seconds: float
    version: str
    busy: float = 0.0
    """Share of the last 10 seconds spent in steps, 0..1; of several models, the busiest one's."""
    model_loads: tuple[ModelLoad, ...] = ()
    """Each model by itself."""
