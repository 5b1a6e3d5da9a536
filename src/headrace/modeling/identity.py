"""What decides a model's keys and values beside its weights, as a digest."""

from hashlib import sha256

import msgspec
from msgspec.structs import replace

from headrace.modeling.layers.rope import inverse_frequencies
from headrace.modeling.spec import ModelSpec


def kv_identity(spec: ModelSpec) -> bytes:
    """sha256 of the architecture as it is served; part of the first name of every chain of KV blocks.

    Of the served context only what it chose counts: rope frequencies, and the windows that still bite.
    Replicas that fit different contexts otherwise share names.
    """
    ropes = [
        (inverse_frequencies(rope, spec.head_size, spec.max_context), rope.attention_factor)
        for rope in spec.ropes
    ]
    rest = replace(spec, max_context=0, ropes=())
    return sha256(msgspec.msgpack.encode(("headrace/kv/model/1", rest, ropes))).digest()
