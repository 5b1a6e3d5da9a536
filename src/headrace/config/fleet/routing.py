"""Routing: which replica gets a request."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class RoutingPolicy(StrEnum):
    """One word for a way to choose; `fleet/gateway/routing` has a module for each."""

    STICKY = "sticky"
    """Where the first token comes soonest, cached prefix counted; the fuller the fleet, the more the prefix counts."""
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    LEAST_REQUESTS = "least_requests"
    LEAST_OUTSTANDING_TOKENS = "least_outstanding_tokens"
    POWER_OF_TWO = "power_of_two"
    LATENCY = "latency"
    SESSION_AFFINITY = "session_affinity"
    PREFIX_AWARE = "prefix_aware"


class RoutingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a replica is chosen among those that can serve a request."""

    policy: RoutingPolicy = RoutingPolicy.STICKY
    """sticky, round_robin, random, least_requests, least_outstanding_tokens, power_of_two, latency,
    session_affinity or prefix_aware."""
    block_chars: Annotated[int, Meta(ge=16)] = 256
    """Characters of prompt per block of the approximate prefix index."""
    max_prefix_blocks: Annotated[int, Meta(ge=1)] = 512
    """Blocks of one prompt that are looked up; what lies behind them is not compared."""
    max_index_blocks: Annotated[int, Meta(ge=1)] = 32_768
    """Blocks that the approximate index keeps for each replica; the least recently used go first. About
    100 bytes each."""
    max_told_blocks: Annotated[int, Meta(ge=1)] = 65_536
    """Blocks that the exact index keeps for each replica that publishes KV events; more are left out. About 250 bytes
    each; a replica's cache should fit."""
    tokenize_timeout: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 0.25
    """Seconds for a prompt's tokens, which the exact index asks of a replica; later it is done without."""
    max_token_bytes: Annotated[int, Meta(ge=0, extra={"unit": "bytes"})] = 32 * 1024 * 1024
    """Bytes of prompts' tokens that are remembered."""
    reuse_weight: Annotated[float, Meta(ge=0)] = 4.0
    """By how much more a prompt token that is not cached counts, beside those that wait, where prompts wait at every
    replica: computing it again then costs all that come behind. Where some replica is free it counts once."""
    max_ttft_penalty: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 5.0
    """Seconds by which a warm replica's first token may be later than the soonest before it is left in any case."""
    prefill_tokens_per_second: Annotated[float, Meta(gt=0)] | None = None
    """Prefill of one replica of weight 1; default measured from the requests themselves."""
    sticky_slack: Annotated[int, Meta(ge=0)] = 4
    """Requests that a warm replica may have beyond `bounded_load` times its part of all before it is left."""
    decode_cost: Annotated[float, Meta(ge=0)] = 2.0
    """What an output token costs a replica, in prompt tokens."""
    isolate_tenants: bool = True
    """Keep the prefix caches of tenants apart, so that none can time what another has asked."""
    session_headers: tuple[str, ...] = ("x-session-id", "x-headrace-session")
    """Headers that name a session, first come first; without one the request's `user`, else, for splits, the API key."""
    bounded_load: Annotated[float, Meta(gt=1)] = 1.25
    """A session leaves its replica while that has more than this many times the mean load."""
