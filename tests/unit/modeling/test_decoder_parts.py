"""Stages and shards: a decoder records its part, and the parts make the whole."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support import published_configs as published
from tests.support.fake_checkpoint import (
    FakeCheckpoint,
    ShapePart,
    hugging_face_shapes,
    shape_parameters,
)

from headrace.core.errors import ConfigError, KernelError, ModelLoadError
from headrace.kernels.formats import WeightFormat
from headrace.kernels.ops import Recorder
from headrace.kernels.shapes import ShapeBackend, ShapeProgram, WeightShape
from headrace.kernels.values import Buffer, DType, KVLayout, StepLimits
from headrace.modeling.collectives import SingleRank
from headrace.modeling.decoder import Decoder, RecordedModel
from headrace.modeling.registry import describe
from headrace.modeling.sharding import Shard, shard_parameters
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.parameters import Transform

CONFIGS = [published.SMOLLM2_135M, published.GEMMA_2_2B, published.PHI_4_MINI, published.QWEN3_0_6B]
SPLIT = ("qkv", "gate_up", "output", "down", "head")
LIMITS = StepLimits(64, 8)


def fake(config: dict) -> FakeCheckpoint:
    return FakeCheckpoint("safetensors", hugging_face_shapes(config), config=config)


def layout_of(spec: ModelSpec, layers: range, kv_heads: int) -> KVLayout:
    groups = spec.layer_groups(layers)
    return KVLayout(
        len(layers), kv_heads, spec.head_size, 16, DType.F16, groups, (4,) * (max(groups) + 1)
    )


@dataclass
class Exchanges:
    """Collectives that only take notes."""

    notes: list[str] = field(default_factory=list)

    def gather_columns(self, recorder: Recorder, x: Buffer, width: int) -> Buffer:
        self.notes.append("gather")
        return recorder.buffer(x.rows, width, x.dtype)

    def share_columns(self, recorder: Recorder, buffer: Buffer, columns: range) -> None:
        assert columns.stop <= buffer.width
        self.notes.append("share")

    def receive(self, recorder: Recorder, hidden: Buffer) -> None:
        self.notes.append("receive")

    def send(self, recorder: Recorder, hidden: Buffer) -> None:
        self.notes.append("send")


def record(config: dict, layers: range, exchanges: Exchanges) -> tuple[RecordedModel, list[str]]:
    checkpoint = fake(config)
    spec, parameters = describe(checkpoint)
    backend = ShapeBackend()
    cache = backend.create_kv_cache(layout_of(spec, layers, spec.num_kv_heads))
    decoder = Decoder(spec, shape_parameters(checkpoint, parameters), layers, collectives=exchanges)
    recorded = decoder.record(backend, LIMITS, cache)
    assert isinstance(recorded.program, ShapeProgram)
    return recorded, [op.name for op in recorded.program.ops]


def test_stages_split_the_work_and_hand_on_the_stream() -> None:
    config = published.GEMMA_3_1B
    stages = [range(7), range(7, 20), range(20, 26)]
    ops = []
    for index, layers in enumerate(stages):
        exchanges = Exchanges()
        recorded, names = record(config, layers, exchanges)
        ops.append(names)
        assert ("embed" in names) == (index == 0)
        assert (recorded.logits is not None) == (index == 2)
        assert exchanges.notes.count("receive") == (index > 0)
        assert exchanges.notes.count("send") == (index < 2)
        assert recorded.hidden.width == 1152
    _, names = record(config, range(26), Exchanges())
    for op in ("attention", "linear", "rms_norm_add", "gated_activation", "gather_outputs"):
        assert sum(stage.count(op) for stage in ops) == names.count(op)


def test_the_last_mlp_runs_on_wanted_rows_only() -> None:
    recorded, names = record(published.SMOLLM2_135M, range(30), Exchanges())
    assert names.count("gather_outputs") == 1
    after = names[names.index("gather_outputs") :]
    assert after == [
        "gather_outputs",
        *("rms_norm", "linear", "gated_activation", "linear"),
        *("rms_norm", "linear"),
    ]
    assert recorded.hidden.rows.value == "R"


def test_a_single_rank_exchanges_nothing() -> None:
    checkpoint = fake(published.SMOLLM2_135M)
    spec, parameters = describe(checkpoint)
    backend = ShapeBackend()
    cache = backend.create_kv_cache(layout_of(spec, range(30), 3))
    loaded = shape_parameters(checkpoint, parameters)
    plain = Decoder(spec, loaded).record(backend, LIMITS, cache).program
    explicit = (
        Decoder(spec, loaded, shard=Shard(0, 1), collectives=SingleRank())
        .record(backend, LIMITS, cache)
        .program
    )
    assert isinstance(plain, ShapeProgram)
    assert isinstance(explicit, ShapeProgram)
    assert plain.ops == explicit.ops


def test_mixed_formats_in_one_parameter_are_converted() -> None:
    """A k-quant file keeps some matrices as floats: the norm then writes f32 once."""
    checkpoint = fake(published.SMOLLM2_135M)
    spec, parameters = describe(checkpoint)
    loaded = shape_parameters(checkpoint, parameters)
    loaded["layers.3.qkv"] = (
        ShapePart(WeightShape(WeightFormat.W4G32, 768, 576), 0),
        ShapePart(WeightShape(WeightFormat.BF16, 192, 576), 768),
    )
    backend = ShapeBackend()
    cache = backend.create_kv_cache(layout_of(spec, range(30), 3))
    program = Decoder(spec, loaded).record(backend, LIMITS, cache).program
    assert isinstance(program, ShapeProgram)
    names = [op.name for op in program.ops]
    assert names.count("convert") == 1  # the float part reads f32 as it is
    assert names.count("linear") == 4 * 30 + 1 + 1


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["architectures"][0])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_shards_make_the_whole(config: dict, num_ranks: int) -> None:
    checkpoint = fake(config)
    spec, parameters = describe(checkpoint)
    sources: dict[str, list[tuple[str, int, int]]] = {}
    for rank in range(num_ranks):
        shard = Shard(rank, num_ranks)
        sliced = shard_parameters(parameters, spec, shard)
        for parameter in sliced:
            for source in parameter.sources:
                start, stop = source.rows or (0, checkpoint.shapes[source.name][0])
                sources.setdefault(parameter.name, []).append((source.name, start, stop))
        check_shard_records(checkpoint, spec, shard, sliced)
    for parameter in parameters:
        for source in parameter.sources:
            ranges = sorted(r[1:] for r in sources[parameter.name] if r[0] == source.name)
            rows = checkpoint.shapes[source.name][0]
            covered = np.zeros(rows, np.int32)
            for start, stop in ranges:
                covered[start:stop] += 1
            is_split = parameter.name.removesuffix(".bias").rpartition(".")[2] in SPLIT
            assert (covered == (1 if is_split else num_ranks)).all()


def check_shard_records(checkpoint: FakeCheckpoint, spec: ModelSpec, shard: Shard, sliced) -> None:
    backend = ShapeBackend()
    cache = backend.create_kv_cache(
        layout_of(spec, range(spec.num_layers), len(shard.kv_heads(spec)))
    )
    exchanges = Exchanges()
    loaded = shape_parameters(checkpoint, sliced)
    decoder = Decoder(spec, loaded, shard=shard, collectives=exchanges)
    recorded = decoder.record(backend, LIMITS, cache)
    assert exchanges.notes.count("gather") == 2 * spec.num_layers
    assert exchanges.notes.count("share") == 2 * spec.num_layers + 1
    assert recorded.logits is not None
    assert recorded.logits.width == spec.vocab_size


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(1, 100_000))
def test_columns_are_covered_once_in_order(num_ranks: int, width: int) -> None:
    stop = 0
    for rank in range(num_ranks):
        columns = Shard(rank, num_ranks).columns(width)
        assert columns.start == stop
        stop = columns.stop
        if width % 32 == 0 and width >= 32 * num_ranks:
            assert columns.start % 32 == 0
    assert stop == width


def test_permuted_rows_are_cut_at_heads() -> None:
    checkpoint = fake(published.SMOLLM2_135M)
    spec, parameters = describe(checkpoint)
    qkv = next(p for p in parameters if p.name == "layers.0.qkv")
    q = qkv.sources[0]
    permuted = qkv.__class__(
        qkv.name,
        qkv.kind,
        (q.__class__(q.name, None, Transform.UNPERMUTE, 9), *qkv.sources[1:]),
    )
    (sliced,) = [
        p
        for p in shard_parameters([permuted, parameters[0]], spec, Shard(1, 2))
        if p.name == qkv.name
    ]
    assert sliced.sources[0].rows == (192, 576)  # KV heads 1 and 2, with three query heads each
    assert sliced.sources[0].num_heads == 6


def test_more_ranks_than_kv_heads() -> None:
    spec, _ = describe(fake(published.SMOLLM2_135M))
    with pytest.raises(ConfigError, match="at most 3"):
        Shard(0, 4).kv_heads(spec)


def test_wrong_layers_layouts_and_parameters_are_refused() -> None:
    checkpoint = fake(published.SMOLLM2_135M)
    spec, parameters = describe(checkpoint)
    loaded = shape_parameters(checkpoint, parameters)
    backend = ShapeBackend()
    with pytest.raises(ModelLoadError, match="not layers of this model"):
        Decoder(spec, loaded, range(10, 31))
    cache = backend.create_kv_cache(layout_of(spec, range(29), 3))
    with pytest.raises(KernelError, match="another layout"):
        Decoder(spec, loaded).record(backend, LIMITS, cache)
    cache = backend.create_kv_cache(layout_of(spec, range(30), 3))
    with pytest.raises(ModelLoadError, match=r"'layers\.29\.down' was not loaded"):
        Decoder(spec, {k: v for k, v in loaded.items() if k != "layers.29.down"}).record(
            backend, LIMITS, cache
        )
    with pytest.raises(ModelLoadError, match="512 tokens is not possible"):
        replace(spec, max_context=256).with_max_context(512)
