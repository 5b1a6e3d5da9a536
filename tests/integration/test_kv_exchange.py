"""A prefix goes from one engine to another, or to memory and back: the same tokens, and they are not computed."""

import random
from pathlib import Path

import msgspec
import pytest
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine
from tests.support.tiny_gemma import make_tiny_gemma
from tests.support.tiny_models import make_tiny_llama

from headrace.core.errors import BadRequestError
from headrace.core.kv_blocks import KVBlocks
from headrace.engine.engine import Engine

rng = random.Random(8)
PROMPT = [rng.randrange(3, 300) for _ in range(75)]
CASES = {
    "llama-f16": (make_tiny_llama, "f16"),
    "llama-int8": (make_tiny_llama, "int8"),
    "llama-f32": (make_tiny_llama, "f32"),
    "gemma-bf16": (make_tiny_gemma, "bf16"),
}


def probe(**params):
    params = {"max_tokens": 12, "seed": 5, "logprobs": 3, "temperature": 0.8, **params}
    return make_request("probe", PROMPT, **params)


def engine_of(model: Path, dtype="auto", **settings) -> RealEngine:
    return RealEngine(model, kv_dtype=dtype, **{"kv_tier_memory": "64MiB", **settings})


def sent(blocks: KVBlocks) -> KVBlocks:
    """As it arrives on the other side of a socket."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(blocks), type=KVBlocks)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_plans", [1, 2])
def test_a_prefix_of_another_engine_is_a_hit_with_the_same_tokens(tmp_path, name, num_plans):
    make, dtype = CASES[name]
    model = make(tmp_path / "model")
    with engine_of(model, dtype) as giver:
        alone = giver.run([probe()])["probe", 0]
        blocks = giver.engine.export_blocks(probe())
    assert len({block.key for block in blocks.blocks}) == 4
    with engine_of(model, dtype, max_uncommitted_plans=num_plans) as taker:
        taker.engine.import_blocks(sent(blocks))
        said = taker.run([probe()])["probe", 0]
        assert said == alone
        assert said.num_cached == 64
        again = taker.engine.export_blocks(probe())
        assert again.blocks[: len(blocks.blocks)] == blocks.blocks


def test_what_the_cache_lost_comes_back_from_the_tier(tmp_path):
    model = make_tiny_llama(tmp_path / "model")
    others = [
        make_request(f"o{n}", [rng.randrange(3, 300) for _ in range(90)], max_tokens=4)
        for n in range(6)
    ]
    with engine_of(model, kv_memory="64KiB", max_num_seqs=2) as engine:
        first = engine.run([probe()])["probe", 0]
        for other in others:
            engine.run([other])
        assert engine.engine.export_blocks(probe()).blocks == ()
        second = engine.run([probe()])["probe", 0]
        assert second == first
        assert second.num_cached == 64


def test_an_engine_without_a_tier_gives_but_does_not_take(tmp_path):
    model = make_tiny_llama(tmp_path / "model")
    with engine_of(model, kv_tier_memory="0") as engine:
        engine.run([probe()])
        blocks = engine.engine.export_blocks(probe())
        assert len(blocks.blocks) == 4
        with pytest.raises(BadRequestError, match="--kv-tier-memory"):
            engine.engine.import_blocks(blocks)


def damaged(given, **fields):
    return msgspec.structs.replace(given, **fields)


def with_first(given, **fields):
    return damaged(given, blocks=(damaged(given.blocks[0], **fields), *given.blocks[1:]))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda b: damaged(b, block_size=32), "shape"),
        (lambda b: damaged(b, num_kv_heads=99), "shape"),
        (lambda b: with_first(b, layers=(0,)), "layers"),
        (lambda b: with_first(b, data=b.blocks[0].data[:-4]), "bytes"),
        (lambda b: with_first(b, key=b"short"), "bytes"),
        (lambda b: with_first(b, data=b"\xff" * len(b.blocks[0].data)), "finite"),
    ],
)
def test_what_does_not_fit_is_refused_whole(tmp_path, spoil, sentence):
    model = make_tiny_llama(tmp_path / "model")
    with engine_of(model) as giver:
        giver.run([probe()])
        blocks = giver.engine.export_blocks(probe())
    with engine_of(model) as taker:
        with pytest.raises(BadRequestError, match=sentence):
            taker.engine.import_blocks(spoil(blocks))
        assert taker.run([probe()])["probe", 0].num_cached == 0


def test_blocks_of_another_salt_or_format_are_never_hit(tmp_path):
    model = make_tiny_llama(tmp_path / "model")
    with engine_of(model, "f16") as giver:
        giver.run([probe()])
        blocks = giver.engine.export_blocks(probe())
    with engine_of(model, "f16") as taker:
        taker.engine.import_blocks(blocks)
        assert taker.run([probe(cache_salt=b"tenant")])["probe", 0].num_cached == 0
    with engine_of(model, "bf16") as taker:
        taker.engine.import_blocks(blocks)
        assert taker.run([probe()])["probe", 0].num_cached == 0


def test_an_engine_without_keys_and_values_says_so():
    engine = Engine.__new__(Engine)
    engine._exchange = None
    with pytest.raises(BadRequestError, match="no KV blocks"):
        engine.export_blocks(probe())
