"""Publishes stored and removed KV blocks over ZeroMQ, in vLLM's wire format.

Multipart messages of three frames: topic, sequence number (8 bytes, big endian), and a msgpack batch
`[seconds since the epoch, [event, ...], rank]`. An event is an array whose first element is its name;
vLLM since June 2026 sends maps with the name under "type" instead, and readers take either. Block
hashes are the low 64 bits of the block's sha256 as an unsigned integer, vLLM's default.
Source: vllm/distributed/kv_events.py.
"""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.engine.memory.events import AllBlocksCleared, BlockRemoved, BlockStored
from headrace.engine.messages import KVEventsConfig

#: Messages kept for a subscriber that is slow; beyond it ZeroMQ drops, and sequence numbers show it.
HIGH_WATER_MARK = 100_000
#: vLLM's word for the engine's own memory, on every device; routers take others for slower tiers.
OWN_MEMORY = "GPU"

log = logging.getLogger("headrace.engine.kv_events")


def encode_event(event: object, *, as_maps: bool) -> Any:
    """One event as vLLM's subscribers expect it. Raises TypeError for an unknown kind."""
    if isinstance(event, BlockStored):
        parent = event.parent_block_hash
        fields: dict[str, Any] = {
            "block_hashes": [_number(digest) for digest in event.block_hashes],
            "parent_block_hash": None if parent is None else _number(parent),
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": event.lora_id,
            "medium": event.medium or OWN_MEMORY,
            "lora_name": event.lora_name,
            "extra_keys": event.extra_keys,
        }
    elif isinstance(event, BlockRemoved):
        fields = {
            "block_hashes": [_number(digest) for digest in event.block_hashes],
            "medium": event.medium or OWN_MEMORY,
        }
    elif isinstance(event, AllBlocksCleared):
        fields = {}
    else:
        raise TypeError(f"not a KV event: {type(event).__name__}")
    named = {"type": type(event).__name__, **fields}
    return named if as_maps else list(named.values())


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


class ZmqPublisher:
    """A PUB socket of the engine process. Never blocks the loop: what nobody reads is dropped."""

    def __init__(self, config: KVEventsConfig, clock: Clock) -> None:
        self._clock = clock
        self._as_maps = config.as_maps
        self._topic = config.topic.encode()
        self._sequence = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(config.endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"KV events cannot be published at '{config.endpoint}': {error}."
            ) from None
        # A subscriber that was there before us must not believe in blocks of our predecessor.
        self.publish([AllBlocksCleared()])

    def publish(self, events: Sequence[object]) -> None:
        """Send one batch."""
        batch = [encode_event(event, as_maps=self._as_maps) for event in events]
        payload = self._encoder.encode([self._clock.wall(), batch, 0])
        frames = (self._topic, self._sequence.to_bytes(8, "big"), payload)
        self._sequence += 1
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.warning("A batch of KV events was not sent: %s", error)

    def close(self) -> None:
        """Close the socket; what waits is dropped."""
        self._context.destroy(linger=0)
