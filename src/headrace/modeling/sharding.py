"""How one model is split over ranks: by heads and by output columns, never along a linear's inputs.

Every output element is therefore computed whole on one rank, in the order `kernels/ops.py` states, and
results are bitwise those of a single rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.core.errors import ConfigError
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import ParameterSpec, Source, Transform

#: Columns are split at multiples of the widest quantisation group, where the width allows it.
COLUMN_UNIT = 32


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of every layer. Shares may be uneven."""

    rank: int = 0
    num_ranks: int = 1

    def kv_heads(self, spec: ModelSpec) -> range:
        """KV heads of this rank; every rank has at least one."""
        if self.num_ranks > spec.num_kv_heads:
            raise ConfigError(
                f"{self.num_ranks} ranks cannot share {spec.num_kv_heads} KV heads; "
                f"use at most {spec.num_kv_heads}."
            )
        return self._share(spec.num_kv_heads)

    def heads(self, spec: ModelSpec) -> range:
        """Query heads of this rank: those that read its KV heads."""
        group = spec.num_heads // spec.num_kv_heads
        kv_heads = self.kv_heads(spec)
        return range(kv_heads.start * group, kv_heads.stop * group)

    def columns(self, width: int) -> range:
        """Columns of an output of this width that this rank computes."""
        unit = COLUMN_UNIT if width % COLUMN_UNIT == 0 else 1
        if width // unit < self.num_ranks:
            unit = 1
        share = self._share(width // unit)
        return range(share.start * unit, share.stop * unit)

    def _share(self, count: int) -> range:
        return range(count * self.rank // self.num_ranks, count * (self.rank + 1) // self.num_ranks)


def shard_parameters(
    parameters: Sequence[ParameterSpec], spec: ModelSpec, shard: Shard
) -> tuple[ParameterSpec, ...]:
    """The same parameters with the rows that this rank needs. One rank: unchanged.

    The embedding table stays whole (its columns are inputs); a tied head becomes a parameter of its
    own, because it is split by vocabulary.
    """
    if shard.num_ranks == 1:
        return tuple(parameters)
    found = [_shard_parameter(parameter, spec, shard) for parameter in parameters]
    if spec.has_tied_head:
        embed = next(parameter for parameter in parameters if parameter.name == "embed")
        found.append(_shard_parameter(replace(embed, name="head"), spec, shard))
    return tuple(found)


def _shard_parameter(parameter: ParameterSpec, spec: ModelSpec, shard: Shard) -> ParameterSpec:
    kind = parameter.name.removesuffix(".bias").rpartition(".")[2]
    segments = _segments(kind, spec, shard)
    if not segments:
        return parameter
    sizes = _source_sizes(parameter, [size for size, _ in segments])
    wanted = []
    first = 0
    for size, rows in segments:
        wanted.append(range(first + rows.start, first + rows.stop))
        first += size
    sources = tuple(_select(parameter.sources, sizes, wanted, spec.head_size))
    return replace(parameter, sources=sources)


def _segments(kind: str, spec: ModelSpec, shard: Shard) -> list[tuple[int, range]]:
    """Per logical part of a parameter: its rows, and those of this rank. Empty: not split."""
    size = spec.head_size
    heads, kv_heads = shard.heads(spec), shard.kv_heads(spec)
    queries = (spec.num_heads * size, range(heads.start * size, heads.stop * size))
    keys = (spec.num_kv_heads * size, range(kv_heads.start * size, kv_heads.stop * size))
    gates = (spec.intermediate_size, shard.columns(spec.intermediate_size))
    outputs = (spec.hidden_size, shard.columns(spec.hidden_size))
    return {
        "qkv": [queries, keys, keys],
        "gate_up": [gates, gates],
        "output": [outputs],
        "down": [outputs],
        "head": [(spec.vocab_size, shard.columns(spec.vocab_size))],
    }.get(kind, [])


def _source_sizes(parameter: ParameterSpec, segment_sizes: list[int]) -> list[int]:
    """Rows of each source: one a segment, or one that joins all segments."""
    if len(parameter.sources) == len(segment_sizes):
        return segment_sizes
    return [sum(segment_sizes)]


def _select(
    sources: Sequence[Source], sizes: Sequence[int], wanted: Sequence[range], head_size: int
) -> Iterator[Source]:
    """The wanted rows, counted over the joined sources, as ranges of the sources."""
    for rows in wanted:
        first = 0
        for source, size in zip(sources, sizes, strict=True):
            start, stop = max(rows.start - first, 0), min(rows.stop - first, size)
            first += size
            if start >= stop:
                continue
            num_heads = source.num_heads
            if source.transform is Transform.UNPERMUTE:
                num_heads = (stop - start) // head_size
            yield replace(source, rows=(start, stop), num_heads=num_heads)
