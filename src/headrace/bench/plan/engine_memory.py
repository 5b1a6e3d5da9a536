"""What our own engine takes on CPUs, from a model's header: a program is recorded with shapes instead of weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.config.engine import EngineConfig
from headrace.core.errors import ModelLoadError
from headrace.engine.build import step_limits
from headrace.engine.kv_memory import kv_layout
from headrace.kernels.cpu.arena import arena_bytes
from headrace.kernels.dispatch import create_backend
from headrace.kernels.shapes import ShapeBackend, ShapeProgram
from headrace.modeling.decoder import Decoder
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.convert import Converter, ParameterOutline
from headrace.modeling.weights.parameters import ParameterSpec


class EngineMemory(NamedTuple):
    """Bytes, but for keys and values."""

    weight_bytes: int
    step_bytes: int
    """Activations of the largest step."""


def engine_memory(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    parameters: Sequence[ParameterSpec],
    quantize: str | None,
) -> EngineMemory:
    """With the engine's own defaults, on this machine. `quantize` (int8 or int4) as when it loads float weights.

    Raises ModelLoadError for tensors that are not as `parameters` say.
    """
    outlines = dict(Converter(checkpoint, quantize).outline(parameters))
    config = EngineConfig()
    limits = step_limits(config.scheduler, spec)
    shapes = ShapeBackend(create_backend("cpu", threads=1).operand_dtype)
    layout = kv_layout(config.memory, spec, tuple(2 for _ in spec.kv_groups()))
    loaded: dict[str, Any] = {name: _stand_in(outline) for name, outline in outlines.items()}
    program = Decoder(spec, loaded).record(shapes, limits, shapes.create_kv_cache(layout)).program
    if not isinstance(program, ShapeProgram):
        raise ModelLoadError("The model cannot be recorded.")
    return EngineMemory(
        sum(map(_bytes, outlines.values())), arena_bytes(program.buffers, program.limits)
    )


def _stand_in(outline: ParameterOutline) -> Any:
    return np.zeros(outline, np.float32) if isinstance(outline, int) else outline


def _bytes(outline: ParameterOutline) -> int:
    return 4 * outline if isinstance(outline, int) else sum(part.nbytes for part in outline)
