"""How many KV blocks fit, and how long a context may be: a pure function of measured numbers."""

from dataclasses import dataclass

from headrace.core.errors import ConfigError

_MIB = 1024 * 1024

#: Tokens of KV that `auto` aims at: 32 conversations of 1,024 tokens, or one of 32,768.
AUTO_TOKENS = 32_768

#: `auto` never takes more than this share of the memory that is free at start.
AUTO_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One KV group: layers that share a window."""

    window: int
    """0 is all tokens."""
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class SizingFacts:
    """What was measured or decided before KV is sized."""

    available_bytes: int
    """Memory free at start, after cgroup limits, weights not counted."""
    weight_bytes: int
    groups: tuple[GroupCost, ...]
    block_size: int
    model_context: int
    max_num_seqs: int
    max_chunk: int
    """Most tokens of one sequence in one step."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer, with a sentence that explains it."""

    num_blocks: tuple[int, ...]
    max_context: int
    kv_bytes: int
    explanation: str


def size_kv(
    facts: SizingFacts, *, kv_bytes: int | None, memory_utilization: float, wanted_context: int
) -> Sizing:
    """Blocks per group and the context that they carry.

    `kv_bytes` is what the operator gave (None: auto); `memory_utilization` > 0 takes that share of the
    available memory for weights and KV together; `wanted_context` 0 takes what the model allows.
    Raises ConfigError when not even two blocks per group fit, when the wanted context does not, or when
    more is given than is free.
    """
    context = min(facts.model_context, wanted_context) if wanted_context else facts.model_context
    budget, reason = _budget(facts, kv_bytes, memory_utilization, context if wanted_context else 0)
    tokens = _tokens_for(facts, budget)
    blocks = tuple(
        _group_tokens(facts, group, tokens) // facts.block_size for group in facts.groups
    )
    if min(blocks) < 2:
        raise ConfigError(
            f"{budget / _MIB:.0f} MiB of KV memory ({reason}) hold fewer than two blocks of "
            f"{facts.block_size} tokens; give more with --kv-memory."
        )
    room = tokens // facts.block_size * facts.block_size
    if wanted_context and room < context:
        raise ConfigError(
            f"A context of {context} tokens does not fit: {budget / _MIB:.0f} MiB of KV memory "
            f"({reason}) hold {room} tokens. Give more with --kv-memory or less with --max-context."
        )
    fitted = min(context, room)
    used = sum(
        count * facts.block_size * group.bytes_per_token
        for count, group in zip(blocks, facts.groups, strict=True)
    )
    explanation = f"KV {used / _MIB:.0f} MiB ({reason}): {room} tokens, context {fitted}"
    if fitted < facts.model_context:
        limit = "--max-context" if fitted == wanted_context else "fitted to KV memory"
        explanation += f" of the model's {facts.model_context} ({limit})"
    return Sizing(blocks, fitted, used, explanation)


def no_kv(max_context: int) -> Sizing:
    """Of a model that keeps none: its scheduler has no sequences, and the least of a ledger."""
    return Sizing(
        (2,), max_context, 0, f"no KV memory: texts of up to {max_context} tokens run whole"
    )


def _budget(
    facts: SizingFacts, kv_bytes: int | None, memory_utilization: float, wanted_context: int
) -> tuple[int, str]:
    if kv_bytes is not None:
        # Blocks take memory when they are written: too much of it would be noticed under load only.
        if kv_bytes > facts.available_bytes:
            raise ConfigError(
                f"--kv-memory asks for {kv_bytes / _MIB:.0f} MiB, but "
                f"{facts.available_bytes / _MIB:.0f} MiB are free."
            )
        return kv_bytes, "--kv-memory"
    if memory_utilization > 0.0:
        budget = int(facts.available_bytes * memory_utilization) - facts.weight_bytes
        return max(0, budget), f"--memory-utilization {memory_utilization:g}"
    need = _bytes_for(facts, max(AUTO_TOKENS, wanted_context))
    limit = int(facts.available_bytes * AUTO_SHARE)
    return (need, "auto") if need <= limit else (limit, "auto: a quarter of free memory")


def _group_tokens(facts: SizingFacts, group: GroupCost, tokens: int) -> int:
    """Tokens that a group must hold so that `tokens` fit in a group without a window."""
    if group.window == 0:
        return tokens
    per_sequence = group.window + facts.max_chunk + 2 * facts.block_size
    return min(tokens, facts.max_num_seqs * per_sequence)


def _bytes_for(facts: SizingFacts, tokens: int) -> int:
    return sum(
        _group_tokens(facts, group, tokens) * group.bytes_per_token for group in facts.groups
    )


def _tokens_for(facts: SizingFacts, budget: int) -> int:
    """The most tokens whose KV takes at most `budget` bytes (bisection: the cost is monotonic)."""
    low, high = 0, budget // max(1, min(group.bytes_per_token for group in facts.groups)) + 1
    while low < high:
        middle = (low + high + 1) // 2
        if _bytes_for(facts, middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
