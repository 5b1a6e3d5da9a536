"""How a model's publisher pools its states, as its files say it."""

from headrace.core.errors import ModelLoadError
from headrace.core.pooling import PoolKind
from headrace.modeling.facts import Facts
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.json_files import read_optional_object

#: llama.cpp's `pooling_type`; 0 is none, 4 a classification head.
_GGUF = {1: PoolKind.MEAN, 2: PoolKind.CLS, 3: PoolKind.LAST}

#: Of sentence-transformers' `1_Pooling/config.json`.
_MODES = {
    "pooling_mode_mean_tokens": PoolKind.MEAN,
    "pooling_mode_cls_token": PoolKind.CLS,
    "pooling_mode_lasttoken": PoolKind.LAST,
}


def default_pooling(checkpoint: Checkpoint, spec: ModelSpec) -> PoolKind:
    """What the files say; else the mean for encoders, the last token for decoders.

    Raises ModelLoadError for a kind that we do not have.
    """
    usual = PoolKind.LAST if spec.encoder is None else PoolKind.MEAN
    if checkpoint.kind == "gguf":
        facts = Facts(checkpoint.metadata, checkpoint.path.name)
        architecture = facts.text("general.architecture", "")
        said = facts.integer(f"{architecture}.pooling_type", 0, minimum=0)
        return _GGUF.get(said, usual)
    said_there = read_optional_object(checkpoint.path / "1_Pooling" / "config.json")
    facts = Facts(said_there, f"{checkpoint.path.name}/1_Pooling/config.json")
    chosen = [
        name
        for name, value in said_there.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    if not chosen:
        return usual
    if len(chosen) > 1 or chosen[0] not in _MODES:
        raise ModelLoadError(
            f"{facts.origin} asks for {' and '.join(chosen)[:200]}, which is not supported; choose with "
            "--pooling mean, last or cls."
        )
    return _MODES[chosen[0]]
