"""What the HTTP process must know of the model that an engine serves."""

from enum import StrEnum

from msgspec import Struct

from headrace.core.pooling import PoolKind


class Task(StrEnum):
    """What a model can be asked for."""

    GENERATE = "generate"
    """Text that goes on."""
    EMBED = "embed"
    """Vectors of texts."""
    SCORE = "score"
    """Scores of pairs by a classification head (a cross-encoder); one label."""


class AdapterInfo(Struct, frozen=True):
    """A LoRA adapter that is loaded: its name is a model's name."""

    name: str
    path: str
    digest: str
    """Content digest, hex: part of the names of KV blocks."""


class ModelInfo(Struct, frozen=True, kw_only=True):
    """Facts of a loaded model and of the engine around it; fixed for one engine life."""

    names: tuple[str, ...]
    """Names that requests may use; the first is the default."""
    source: str
    """What the operator asked for: a short name, path or URL."""
    path: str
    """The file or directory that it was resolved to; the tokenizer is read from there too."""
    family: str
    digest: str
    """Content digest of the weights, hex; its head is in `system_fingerprint`."""
    vocab_size: int
    max_context: int
    """Tokens of prompt and answer together."""
    block_size: int
    num_blocks: int
    kv_bytes: int = 0
    kv_format: str = ""
    """How keys and values are kept: f32, bf16, int8, …"""
    weight_bytes: int = 0
    """Of all parameters as they are served."""
    step_bytes: int = 0
    """Room for the activations of the largest step; only rows that were written take memory."""
    parameters: int = 0
    """Elements of all weight matrices."""
    tasks: tuple[Task, ...] = (Task.GENERATE,)
    """What it can do, its main task first."""
    pooling: PoolKind = PoolKind.LAST
    """Which states make the vector of a text."""
    normalizes: bool = True
    """Vectors have the length 1."""
    embedding_size: int = 0
    """Elements of a vector."""
    max_text_tokens: int = 0
    """Tokens of a text that becomes a vector or a score."""
    max_num_seqs: int = 0
    splits_prompts: bool = True
    """A long prompt is spread over steps (chunked prefill), so that steps stay short."""
    isa: str = ""
    """Instruction set of the kernels."""
    threads: int = 0
    adapters: tuple[AdapterInfo, ...] = ()
    """Those that were loaded with the model."""
    phases: dict[str, float] = {}
    """Seconds that each phase of the start took, in order."""
    lines: tuple[str, ...] = ()
    """What the operator should read at start, such as the memory table."""

    @property
    def memory_bytes(self) -> int:
        """Weights, keys and values together."""
        return self.weight_bytes + self.kv_bytes
