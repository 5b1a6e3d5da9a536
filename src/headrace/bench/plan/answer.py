"""The plan itself: what fits, how fast it is, how many replicas that takes. Pure arithmetic over facts.

A decoding step of B sequences reads all weights and the keys and values of B contexts, and computes with every weight B
times; it takes as long as the slower of the two (the roofline: Williams, Waterman and Patterson, 2009). While requests come
as fast as they end, each step has its part of prompts too: B / answer tokens of them.
"""

from collections.abc import Callable
from math import ceil

from msgspec import Struct

from headrace.bench.plan.accelerators import Machine
from headrace.bench.plan.model_facts import ModelFacts
from headrace.bench.plan.options import PlanOptions
from headrace.bench.simulate.profile import Profile
from headrace.core.errors import ConfigError
from headrace.engine.executor.sizing import GroupCost
from headrace.kernels.values import DType, KVLayout
from headrace.modeling.spec import ModelSpec

#: As the engine has them by default: tokens of a KV block, and of a step.
BLOCK, STEP = 16, 512
#: Sequences of one replica that are ever considered.
_MAX_BATCH = 4096


class Split(Struct, frozen=True, kw_only=True):
    """One way to share the model among accelerators."""

    tensor_parallel: int
    is_allowed: bool
    reason: str = ""
    """Why not."""


class Plan(Struct, frozen=True, kw_only=True):
    """The answer. Memory in bytes, times in seconds."""

    model: str
    machine: str
    source: str
    """Where the machine's figures, or the step times, are from."""
    num_parameters: int
    weights: str
    weight_bytes: float
    """Of one replica, all its accelerators together."""
    step_bytes: int | None
    """Activations of the largest step, which `--utilization` must leave room for; None: not known."""
    kv_bytes_per_token: float
    """Of a token that all layers keep."""
    kv_bytes_per_sequence: float
    """Of one request at its full context: windows keep less."""
    kv_bytes: float
    """Memory left for keys and values."""
    max_sequences: int
    """Of the full context, that fit at once."""
    batch: int
    """Sequences of a replica that keep the objectives; 0: not even one does."""
    limited_by: str
    """memory, tpot, or slots (sequences of one replica); or ttft or tpot where one sequence is too slow."""
    ttft: float
    """Of a prompt that runs alone."""
    tpot: float
    """At that batch, prompts of others included."""
    tokens_per_second: float
    """Output of one replica at that batch."""
    replicas: int
    """0: objectives cannot be kept on this machine."""
    accelerators: int
    hourly_cost: float | None
    cost_per_million_tokens: float | None
    """Of output, at full use."""
    splits: tuple[Split, ...]


class Times(Struct, frozen=True, kw_only=True):
    """What steps take."""

    decode: Callable[[int], float]
    """A decoding step of so many sequences."""
    prompt: float
    """A whole prompt."""
    source: str


def make_plan(
    facts: ModelFacts,
    machine: Machine,
    options: PlanOptions,
    slo: dict[str, float],
    profile: Profile | None,
) -> Plan:
    """Raises ConfigError for a question without an answer: a context that the model does not have, no such split."""
    _check(facts, options)
    degree = options.tensor_parallel or machine.number
    splits = tuple(split_of(facts.spec, n) for n in _degrees(machine.number, degree))
    chosen = splits[-1]
    if not chosen.is_allowed:
        raise ConfigError(f"--tensor-parallel {degree}: {chosen.reason}")
    each, whole = kv_costs(facts.spec, options)
    kv_bytes = machine.each.memory * machine.number * options.utilization - facts.weight_bytes
    fitting = max(0, int(kv_bytes // whole))
    times = (
        _roofline(facts, machine, options, each, whole)
        if profile is None
        else _measured(profile, options)
    )
    batch, limit = _batch(times, options, slo, fitting, _slots(profile))
    tpot = _tpot(times, options, max(1, batch))
    rate = batch / tpot
    replicas = ceil(options.users / batch) if batch else 0
    hourly = (
        None if options.hourly_cost is None else options.hourly_cost * replicas * machine.number
    )
    per_token = None
    if options.hourly_cost is not None and rate:
        per_token = options.hourly_cost * machine.number / (3600 * rate) * 1e6
    return Plan(
        model=facts.name,
        machine=f"{machine.number} x {machine.name}",
        source=machine.each.source if profile is None else times.source,
        num_parameters=facts.num_parameters,
        weights=facts.weights,
        weight_bytes=facts.weight_bytes,
        step_bytes=facts.step_bytes,
        kv_bytes_per_token=each,
        kv_bytes_per_sequence=whole,
        kv_bytes=max(0.0, kv_bytes),
        max_sequences=fitting,
        batch=batch,
        limited_by=limit,
        ttft=times.prompt,
        tpot=tpot,
        tokens_per_second=rate,
        replicas=replicas,
        accelerators=replicas * machine.number,
        hourly_cost=hourly,
        cost_per_million_tokens=per_token,
        splits=splits,
    )


def _check(facts: ModelFacts, options: PlanOptions) -> None:
    if options.context > facts.spec.max_context:
        raise ConfigError(
            f"--context {options.context} is more than this model's context of {facts.spec.max_context} tokens."
        )
    if options.output_tokens >= options.context:
        raise ConfigError(
            f"--output-tokens {options.output_tokens} leave no room for a prompt in a context of {options.context}."
        )


def kv_costs(spec: ModelSpec, options: PlanOptions) -> tuple[float, float]:
    """Bytes of a token that all layers keep, and of a whole request. A window keeps itself, a step and two blocks, as
    in `engine/executor/sizing.py`.
    """
    spec = spec.with_max_context(options.context)
    layout = KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        block_size=BLOCK,
        dtype=DType(options.kv_dtype),
        layer_groups=spec.layer_groups(),
        num_blocks=tuple(1 for _ in spec.kv_groups()),
    )
    groups = [
        GroupCost(group.window, len(group.layers) * layout.bytes_per_token_layer)
        for group in spec.kv_groups()
    ]
    context = -(-options.context // BLOCK) * BLOCK
    whole = sum(
        g.bytes_per_token * min(context, g.window + STEP + 2 * BLOCK if g.window else context)
        for g in groups
    )
    return float(sum(g.bytes_per_token for g in groups)), float(whole)


def split_of(spec: ModelSpec, degree: int) -> Split:
    """Whether layers can be shared so: every accelerator has as many heads, and KV heads are split or copied whole."""
    if spec.num_heads % degree:
        reason = f"{spec.num_heads} query heads do not split into {degree} equal parts."
    elif max(degree, spec.num_kv_heads) % min(degree, spec.num_kv_heads):
        reason = f"{spec.num_kv_heads} KV heads can be neither split nor copied for {degree} parts."
    elif spec.intermediate_size % degree:
        reason = (
            f"an MLP of {spec.intermediate_size} columns does not split into {degree} equal parts."
        )
    else:
        return Split(tensor_parallel=degree, is_allowed=True)
    return Split(tensor_parallel=degree, is_allowed=False, reason=reason)


def _degrees(count: int, chosen: int) -> list[int]:
    """All that divide the accelerators; the chosen one last. Raises ConfigError."""
    if chosen < 1 or count % chosen:
        raise ConfigError(f"--tensor-parallel {chosen} does not divide {count} accelerators.")
    return [n for n in range(1, count + 1) if count % n == 0 and n != chosen] + [chosen]


def _roofline(
    facts: ModelFacts, machine: Machine, options: PlanOptions, each: float, whole: float
) -> Times:
    bandwidth = machine.each.bandwidth * machine.number * options.memory_efficiency
    share_of_peak = machine.number * options.compute_efficiency
    flops = machine.each.flops * share_of_peak
    # Of fp8 weights alone: attention computes in 16 bits all the same.
    products = flops if options.weights != "fp8" else machine.each.fp8_flops * share_of_peak
    spec = facts.spec
    # On average half of its answer is there.
    share = (options.context - options.output_tokens / 2) / options.context
    per_token = 2.0 * (facts.num_parameters - facts.num_embedding)
    read = facts.weight_bytes * (1 - facts.num_embedding / facts.num_parameters)
    pair = 4.0 * spec.num_heads * spec.head_size

    def seen(position: float) -> float:
        """Positions that a query attends to, over all layers."""
        return sum(
            min(position, layer.window) if layer.window else position for layer in spec.layers
        )

    def decode(batch: int) -> float:
        attended = pair * seen(share * options.context)
        return max(
            (read + batch * share * whole) / bandwidth,
            batch * (per_token / products + attended / flops),
        )

    prompt = options.context - options.output_tokens
    work = prompt * (per_token / products + pair * seen(prompt / 2) / flops)
    seconds = max(work, -(-prompt // STEP) * read / bandwidth)
    return Times(decode=decode, prompt=seconds, source=machine.each.source)


def _measured(profile: Profile, options: PlanOptions) -> Times:
    step = profile.step
    prompt = options.context - options.output_tokens
    mean = options.context - options.output_tokens / 2
    steps = -(-prompt // profile.max_num_batched_tokens)
    seconds = (
        steps * step.fixed
        + step.seconds(prompt, 0, prompt * (prompt + 1) // 2)
        - step.fixed
        + profile.request_seconds
    )
    return Times(
        decode=lambda batch: step.seconds(0, batch, int(batch * mean)),
        prompt=seconds,
        source=f"measured: {profile.model} on {profile.machine or 'a machine'}",
    )


def _slots(profile: Profile | None) -> int:
    return _MAX_BATCH if profile is None else profile.max_num_seqs


def _tpot(times: Times, options: PlanOptions, batch: int) -> float:
    """Of a full replica: its own step, and what of prompts each step has."""
    return times.decode(batch) + batch / options.output_tokens * times.prompt


def _batch(
    times: Times, options: PlanOptions, slo: dict[str, float], fitting: int, slots: int
) -> tuple[int, str]:
    """The largest batch that fits and keeps the objectives, and what bounds it."""
    most = min(fitting, slots)
    if most < 1:
        return 0, "memory"
    if "ttft" in slo and times.prompt + times.decode(1) > slo["ttft"]:
        return 0, "ttft"
    bound = slo.get("tpot", float("inf"))
    if _tpot(times, options, 1) > bound:
        return 0, "tpot"
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if _tpot(times, options, middle) <= bound:
            low = middle
        else:
            high = middle - 1
    if low < most:
        return low, "tpot"
    return low, "memory" if low == fitting else "slots"
