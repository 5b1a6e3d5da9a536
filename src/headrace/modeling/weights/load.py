"""Weights into the form that kernels read: from the packed cache, or converted and put there."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.convert import Converter
from headrace.modeling.weights.digest import ContentDigest
from headrace.modeling.weights.loaded import LoadedWeights
from headrace.modeling.weights.packed_cache import CacheKey, EntryWriter, has_room, read_entry
from headrace.modeling.weights.parameters import (
    LoadedParameter,
    PackedPart,
    ParameterKind,
    ParameterSpec,
)

__all__ = ["LoadedParameter", "LoadedWeights", "PackedPart", "load_parameters"]

#: Types that `quantize` applies to.
_FLOATS: Final = frozenset({"F32", "F16", "BF16"})

_log = logging.getLogger(__name__)


def load_parameters(
    checkpoint: Checkpoint,
    specs: Sequence[ParameterSpec],
    *,
    quantize: str | None = None,
    cache: Path | None = None,
    isa: str = "generic",
) -> LoadedWeights:
    """Every parameter of `specs`, packed. With a `cache` directory they are mapped from there.

    For a tensor-parallel rank, `specs` name the rows that it holds (`modeling/sharding.py`).
    `quantize` (int8 or int4) applies to float matrices; where there are none, it costs a warning. `isa` is part of the cache key. A cache that
    cannot be written costs a warning, never the start. Raises ModelLoadError for tensors that are
    missing, of a wrong shape or type, or not finite, and for files that cannot be read.
    """
    if quantize is not None:
        _warn_of_quantized(checkpoint, specs, quantize)
    converter = Converter(checkpoint, quantize)
    if cache is None:
        with ContentDigest(checkpoint.files, quantize) as digest:
            return _in_memory(converter, specs, digest)
    key = CacheKey.of(checkpoint, specs, isa=isa, quantize=quantize)
    found = read_entry(cache, key)
    if found is not None:
        return found
    with ContentDigest(checkpoint.files, quantize) as digest:
        return _through_cache(converter, specs, digest, cache, key)


def _warn_of_quantized(
    checkpoint: Checkpoint, specs: Sequence[ParameterSpec], quantize: str
) -> None:
    sources = [
        source.name
        for spec in specs
        if spec.kind is ParameterKind.LINEAR
        for source in spec.sources
    ]
    types = {checkpoint.tensors[name].type for name in sources if name in checkpoint.tensors}
    if types and not types & _FLOATS:
        _log.warning(
            "quantize %s changes nothing: the weights of %s are quantised already (%s).",
            quantize,
            checkpoint.path.name,
            ", ".join(sorted(types)),
        )


def _in_memory(
    converter: Converter, specs: Sequence[ParameterSpec], digest: ContentDigest
) -> LoadedWeights:
    parameters = dict(converter.convert(specs))
    return LoadedWeights(parameters, digest.result(), is_mapped=False)


def _through_cache(
    converter: Converter,
    specs: Sequence[ParameterSpec],
    digest: ContentDigest,
    cache: Path,
    key: CacheKey,
) -> LoadedWeights:
    """Write each parameter as it is packed and forget it, then map the file."""
    try:
        # What is packed takes about as much as the file; quantising only makes it smaller.
        if not has_room(cache, sum(size for _, size, _, _ in key.files)):
            raise OSError(f"the disk of {cache} is nearly full")
        with EntryWriter(cache, key) as writer:
            for name, parameter in converter.convert(specs):
                writer.add(name, parameter)
            writer.finish(digest.result())
    except OSError as error:
        _log.warning("Packed weights are not kept for the next start: %s.", error)
        return _in_memory(converter, specs, digest)
    found = read_entry(cache, key)
    return _in_memory(converter, specs, digest) if found is None else found
