"""KV events off the wire: both shapes, both kinds of hashes, and garbage."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.kv_events import encode_event
from headrace.engine.memory import events as engine
from headrace.fleet.gateway.prefix.kv_wire import (
    Cleared,
    MalformedError,
    Removed,
    Stored,
    decode_batch,
    extra_key,
)

HERE = ("GPU", 0)
WALL = 1.8e9


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([WALL, list(events), 0])


STORED = Stored(hashes=(7, 8), parent=None, token_ids=(1, 2, 3, 4), block_size=2, place=HERE)


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [7, 8], None, [1, 2, 3, 4], 2],
        ["BlockStored", [7, 8], None, [1, 2, 3, 4], 2, None, "GPU", None],
        ["BlockStored", [7, 8], None, [1, 2, 3, 4], 2, None, None, None, None, 0, "new", {"x": 1}],
        {"type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": None,
         "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": None, "future": [1]},
    ],
)  # fmt: skip
def test_blocks_are_stored(event: Any) -> None:
    assert decode_batch(batch(event)) == [STORED]


def test_hashes_may_be_bytes() -> None:
    (event,) = decode_batch(batch(["BlockStored", [b"\1" * 32], b"\2" * 32, [1, 2], 2]))
    assert isinstance(event, Stored)
    assert (event.hashes, event.parent) == ((b"\1" * 32,), b"\2" * 32)


def test_tiers_and_groups_are_places() -> None:
    event = ["BlockStored", [7], None, [1], 1, None, "CPU", None, None, 3]
    assert decode_batch(batch(event))[0].place == ("CPU", 3)
    assert decode_batch(batch(["BlockRemoved", [7], "CPU", 3])) == [
        Removed(hashes=(7,), place=("CPU", 3))
    ]


@pytest.mark.parametrize(
    ("kind", "window", "is_partial"),
    [
        (None, None, False), ("full_attention", None, False), ("mla_attention", None, False), ("of tomorrow", None, False),
        ("sliding_window", 128, True), (None, 128, True), ("mamba", None, True), (["x"], {"y": 1}, False),
    ],
)  # fmt: skip
def test_what_groups_of_layers_hold(kind: Any, window: Any, is_partial: bool) -> None:
    event = ["BlockStored", [7], None, [1], 1, None, "GPU", None, None, 1, kind, window]
    assert decode_batch(batch(event))[0].is_partial is is_partial


def test_extra_keys_are_kept_without_the_adapter() -> None:
    event = ["BlockStored", [7, 8], None, [1, 2], 1, 5, "GPU", "lora", [["lora", "salt"], ["lora"]]]
    (found,) = decode_batch(batch(event))
    assert isinstance(found, Stored)
    assert (found.adapter, found.extra) == ("lora", (extra_key(["salt"]), b""))


def test_the_rest() -> None:
    events = decode_batch(
        batch(
            ["AllBlocksCleared"], ["SomethingNew", 1], {"type": "BlockRemoved", "block_hashes": [1]}
        )
    )
    assert events == [Cleared(), Removed(hashes=(1,), place=HERE)]
    assert decode_batch(msgspec.msgpack.encode({"ts": 1.0, "events": [["AllBlocksCleared"]]})) == [
        Cleared()
    ]


@pytest.mark.parametrize("as_maps", [False, True])
def test_what_headrace_publishes(as_maps: bool) -> None:
    log = engine.KVEventLog()
    log.stored([b"\0" * 24 + b"\0" * 7 + b"\7"], None, [1, 2], 2, engine.Origin("lora", b"salt"))
    log.removed(b"\xff" * 32)
    log.cleared()
    published = [engine.BlockStored([b"\7" * 32], b"\6" * 32, [1, 2], 2), engine.AllBlocksCleared()]
    found = decode_batch(batch(*(encode_event(event, as_maps=as_maps) for event in published)))
    assert isinstance(found[0], Stored)
    assert found[0].parent == int.from_bytes(b"\6" * 8, "big")
    assert found[1] == Cleared()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        msgspec.msgpack.encode(5),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode({"x": 1}),
        msgspec.msgpack.encode([1.0, 5]),
        batch(5),
        batch([]),
        batch({}),
        batch(["BlockStored"]),
        batch(["BlockStored", [7], None, [1, 2], 3]),
        batch(["BlockStored", [7], None, [1, 2], 0]),
        batch(["BlockStored", [7], None, [1], True]),
        batch(["BlockStored", [7], None, [-1], 1]),
        batch(["BlockStored", [7], None, [1 << 40], 1]),
        batch(["BlockStored", [7], None, ["a"], 1]),
        batch(["BlockStored", [7.5], None, [1], 1]),
        batch(["BlockStored", ["text"], None, [1], 1]),
        batch(["BlockStored", [b"x" * 1000], None, [1], 1]),
        batch(["BlockStored", [7], [1], [1], 1]),
        batch(["BlockStored", [7], None, [1], 1, None, None, None, [[], []]]),
        batch(["BlockStored", [7], None, [1], 1, None, None, None, 5]),
        batch(["BlockRemoved"]),
        batch(["BlockRemoved", 5]),
        b"\x91" * 5000,
    ],
)
def test_garbage_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_batch(payload)


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.binary(max_size=60) | st.lists(VALUE, max_size=4).map(msgspec.msgpack.encode))
def test_anything_is_events_or_malformed(payload: bytes) -> None:
    try:
        assert isinstance(decode_batch(payload), list)
    except MalformedError:
        return


@given(
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    st.lists(VALUE, max_size=10),
)
def test_any_event_is_an_event_or_malformed(kind: str, fields: list[Any]) -> None:
    try:
        assert len(decode_batch(batch([kind, *fields]))) == 1
    except MalformedError:
        return
