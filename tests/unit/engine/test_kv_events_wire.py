"""KV events as a vLLM subscriber reads them."""

import msgspec
import pytest
import zmq

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.engine.kv_events import ZmqPublisher
from headrace.engine.memory.events import BlockRemoved, BlockStored
from headrace.engine.messages import KVEventsConfig

# The structs of a subscriber, from vLLM's published wire format.


class _Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class _Stored(_Event, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class _Removed(_Event, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class _Cleared(_Event, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None = None


def _subscribe(endpoint):
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.connect(endpoint)
    return context, socket


@pytest.mark.parametrize("as_maps", [False, True])
def test_a_subscriber_reads_topic_sequence_and_batch(tmp_path, as_maps):
    endpoint = f"ipc://{tmp_path}/events"
    publisher = ZmqPublisher(
        KVEventsConfig(endpoint=endpoint, topic="kv@here@model", as_maps=as_maps), SystemClock()
    )
    context, socket = _subscribe(endpoint)
    stored = BlockStored([bytes(31) + b"\x07", b"\xff" * 32], bytes(31) + b"\x06", [1, 2, 3, 4], 2)
    try:
        # PUB drops what is sent before the subscription arrives: repeat until one comes through.
        while not socket.poll(20):
            publisher.publish([stored, BlockRemoved([bytes(31) + b"\x07"])])
        topic, first, payload = socket.recv_multipart()
        assert topic == b"kv@here@model"
        publisher.publish([BlockRemoved([bytes(32)])])
        sequences = [int.from_bytes(first, "big")]
        while socket.poll(200):
            sequences.append(int.from_bytes(socket.recv_multipart()[1], "big"))
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        assert len(first) == 8
    finally:
        publisher.close()
        context.destroy(linger=0)
    if as_maps:
        seconds, events, rank = msgspec.msgpack.decode(payload)
        assert (seconds > 0, rank) == (True, 0)
        assert [e["type"] for e in events] == ["BlockStored", "BlockRemoved"]
        assert events[0]["parent_block_hash"] == 6
        return
    batch = msgspec.msgpack.decode(payload, type=_Batch)
    assert batch.events == [
        _Stored([7, 2**64 - 1], 6, [1, 2, 3, 4], 2, None, "GPU", None),
        _Removed([7], "GPU"),
    ]


def test_an_endpoint_that_cannot_be_bound_is_a_configuration_error():
    with pytest.raises(ConfigError, match="nonsense"):
        ZmqPublisher(KVEventsConfig(endpoint="nonsense"), SystemClock())
