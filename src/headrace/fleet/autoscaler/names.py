"""Names under which a pool's replicas serve their model, before any of them could be asked. Pure."""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from headrace.config.fleet.pools import PoolConfig

_FLAGS = ("served-model-name", "served_model_name", "alias")
_WEIGHTS = (".gguf", ".safetensors")


def expected_names(pool: PoolConfig) -> tuple[str, ...]:
    """`--served-model-name`, else the short name, or the stem of what a path or an address ends with."""
    if named := configured_names(pool):
        return named
    last = PurePosixPath(pool.model.rstrip("/").rpartition(":")[2]).name or pool.model
    for suffix in _WEIGHTS:
        last = last.removesuffix(suffix)
    return (last,)


def configured_names(pool: PoolConfig) -> tuple[str, ...]:
    """Of `--served-model-name`; none where it is left out."""
    for flag, value in pool.serve.items():
        if flag.lstrip("-") in _FLAGS:
            return tuple(str(value).replace(",", " ").split())
    return ()


def fits(lane: str, names: Iterable[str], version: str, labels: Mapping[str, str]) -> bool:
    """Requests of this lane (see `models.values.Target`) may go to replicas of these names, version and labels."""
    for name in names:
        if lane == name:
            return True
        if lane.startswith(f"{name}@"):
            return all(_is_met(part, version, labels) for part in lane[len(name) + 1 :].split("@"))
    return False


def _is_met(part: str, version: str, labels: Mapping[str, str]) -> bool:
    if "=" not in part:
        return part == version
    pairs = (pair.partition("=") for pair in part.split(","))
    return all(labels.get(name) == value for name, _, value in pairs)
