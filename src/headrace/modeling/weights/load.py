"""Weights into the form that kernels read: from the packed cache, or converted and put there."""

import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.modeling.weights.checkpoint import Checkpoint
from headrace.modeling.weights.convert import Converter
from headrace.modeling.weights.digest import ContentDigest
from headrace.modeling.weights.loaded import LoadedWeights
from headrace.modeling.weights.packed_cache import CacheKey, EntryWriter, has_room, read_entry
from headrace.modeling.weights.parameters import LoadedParameter, PackedPart, ParameterSpec

__all__ = ["LoadedParameter", "LoadedWeights", "PackedPart", "load_parameters"]

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
    `quantize` (int8 or int4) applies to float matrices. `isa` is part of the cache key. A cache that
    cannot be written costs a warning, never the start. Raises ModelLoadError for tensors that are
    missing, of a wrong shape or type, or not finite, and for files that cannot be read.
    """
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
