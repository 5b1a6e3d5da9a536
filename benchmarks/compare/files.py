"""The model files of a comparison: which precision classes there are, and who runs which file."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.config.env import cache_home
from headrace.modeling.weights.sources import resolve

SHORT_NAMES = {"smollm2": "smollm2-135m", "gemma": "gemma-3-270m"}
"""What `--model` takes beside any source that headrace knows."""


class Precision(StrEnum):
    """Bits of a weight, which all that are compared share."""

    FOUR_BIT = "4bit"
    EIGHT_BIT = "8bit"
    BF16 = "bf16"
    OWN = "own"
    """The file as its publisher made it, for all."""


@dataclass(frozen=True)
class ModelFiles:
    """Who runs which file."""

    common: Path
    openvino: Path

    def of(self, peer: str) -> Path:
        """The file that a peer is given."""
        return self.openvino if peer == "openvino" else self.common


def model_name(given: str) -> str:
    """The short name in full; anything else as it is."""
    return SHORT_NAMES.get(given, given)


def model_files(given: str, precision: Precision) -> ModelFiles:
    """Download and convert what the class needs.

    4 bit: Q4_0 for all, the fastest type of the others.
    bf16: OpenVINO's reader does not know BF16; it gets F16, which it computes in bf16 where the CPU can.
    """
    path = resolve(model_name(given))
    if precision is Precision.OWN:
        return ModelFiles(path, path)
    if precision is Precision.BF16:
        return ModelFiles(variant(path, "BF16"), variant(path, "F16"))
    same = variant(path, "Q4_0" if precision is Precision.FOUR_BIT else "Q8_0")
    return ModelFiles(same, same)


def variant(path: Path, kind: str) -> Path:
    """The same model with its matrices in another GGUF type, made once and kept in the cache."""
    import gguf
    from requantize import requantize

    target = cache_home() / "bench" / f"{path.stem}.{kind}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".part")
        requantize(path, partial, gguf.GGMLQuantizationType[kind])
        partial.replace(target)
    return target
