"""The states of whole texts: a recorded program whose keys nobody reads after its step.

Every layer writes its keys where the layer before wrote its own, so one layer of scratch serves all, in
float32. A text runs in one step, whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import KernelError
from headrace.kernels.ops import Backend, KVCache, Program
from headrace.kernels.values import Buffer, DType, KVLayout, StepLimits
from headrace.modeling.adapters.table import AdapterTable
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import LoadedParameter

#: Tokens of one block of the scratch. Texts take whole blocks.
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class RecordedStates:
    """A program and where its results lie."""

    program: Program
    states: Buffer
    """f32 [T, C]: each token's last hidden state, normalised as the model does it."""
    scores: Buffer | None = None
    """f32 [R, labels]: outputs of the classification head, where there is one."""


def states_layout(spec: ModelSpec, *, max_tokens: int, max_texts: int) -> KVLayout:
    """Scratch for steps of so many tokens and texts."""
    return KVLayout(
        num_layers=1,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        block_size=BLOCK_SIZE,
        dtype=DType.F32,
        layer_groups=(0,),
        num_blocks=(max_tokens // BLOCK_SIZE + max_texts,),
    )


def check_states_layout(spec: ModelSpec, layout: KVLayout) -> None:
    """Raises KernelError for a cache that is not such a scratch."""
    found = (layout.num_layers, layout.num_kv_heads, layout.head_size)
    if found != (1, spec.num_kv_heads, spec.head_size):
        raise KernelError("The KV cache is not one layer of scratch for this model.")


def record_states(
    spec: ModelSpec,
    parameters: Mapping[str, LoadedParameter],
    backend: Backend,
    limits: StepLimits,
    kv_cache: KVCache,
    adapters: AdapterTable | None = None,
) -> RecordedStates:
    """Of a decoder or of an encoder, which has no adapters."""
    # Here, not at the top: most servers have use for one of them, if any.
    if spec.encoder is None:
        from headrace.modeling.decoder import Decoder

        decoder = Decoder(spec, parameters, adapters=adapters)
        return decoder.record_states(backend, limits, kv_cache)
    from headrace.modeling.encoder import Encoder

    return Encoder(spec, parameters).record(backend, limits, kv_cache)
