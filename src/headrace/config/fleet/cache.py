"""The cache of answers: what is kept, for how long, where; and when a question counts as asked before."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.secret import Secret

Bytes = Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})]
Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]


class CacheMode(StrEnum):
    """What a request wants of the cache; the header x-headrace-cache, or its key's setting."""

    AUTO = "auto"
    """Deterministic requests are looked up and kept."""
    USE = "use"
    """So is this one, whatever it is."""
    BYPASS = "bypass"
    """Neither looked up nor kept, nor shared with others in flight."""
    REFRESH = "refresh"
    """Made anew, and kept."""
    ONLY = "only"
    """From the cache or not at all: 504 where it is not there."""


class SemanticMode(StrEnum):
    """Whether questions that mean the same count as one."""

    OFF = "off"
    SHADOW = "shadow"
    """Never answered with: what would have been told is compared with the real answer, and counted."""
    ON = "on"


class SemanticConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The semantic cache. Only the last user turn may differ, and only in wording."""

    mode: SemanticMode = SemanticMode.OFF
    """off, shadow (measure only) or on."""
    url: str | None = None
    """Endpoint of embeddings in OpenAI's shape, with or without /v1: a headrace replica that serves a MiniLM, say."""
    model: str = "default"
    """Its model."""
    api_key: Secret | None = None
    """Sent to it as a bearer token."""
    threshold: Annotated[float, Meta(ge=0.5, le=1.0)] = 0.92
    """Cosine similarity from which on two questions may count as one."""
    max_new_words: Annotated[int, Meta(ge=0, le=16)] = 0
    """Words with a meaning of their own that either question may have and the other not. 0: only order of address,
    fillers, contractions and plurals may differ. Measure in shadow mode before you raise it."""
    max_entries: Annotated[int, Meta(ge=1, le=100_000)] = 4096
    """Questions that are kept in the index; the least recently used go first."""
    max_scan: Annotated[int, Meta(ge=1, le=100_000)] = 4096
    """Questions of one conversation that are compared, newest first; a lookup never costs more."""
    max_question_chars: Annotated[int, Meta(ge=1)] = 2000
    """Longer questions are not looked up: a detail could hide in them."""
    timeout: Seconds = 0.25
    """Seconds that an embedding may take; then it is a miss."""
    shadow_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the requests that shadow mode measures."""
    agreement: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """Shadow mode calls a cached answer right if it shares at least this much of its words with the real one, and
    all numbers."""


class CacheConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The response cache of a gateway."""

    enabled: bool = False
    """Whether answers are kept at all."""
    ttl: Seconds = 3600.0
    """Seconds that an answer may be told again."""
    path: str | None = None
    """SQLite file, kept over restarts; none: in memory."""
    redis: Secret | None = None
    """redis:// or rediss:// address, where several gateways share one cache; its size is bounded by Redis' maxmemory."""
    redis_timeout: Seconds = 0.1
    """Seconds that Redis may take, and that a look-up waits for its turn in a burst; then it is a miss."""
    namespace: str = ""
    """Part of every key: a new word, and nothing of before is found."""
    max_bytes: Bytes = 256 * 1024 * 1024
    """Bytes of all answers."""
    max_entries: Annotated[int, Meta(ge=1)] = 100_000
    """Answers in all; the least recently told go first."""
    max_entry_bytes: Bytes = 1024 * 1024
    """Longer answers are not kept."""
    single_flight: bool = True
    """Identical requests in flight are made once and told to all."""
    max_flight_bytes: Bytes = 4 * 1024 * 1024
    """Bytes of one answer in flight that are held for those that joined later or read slowly."""
    max_flights_bytes: Bytes = 64 * 1024 * 1024
    """Bytes of all answers in flight; beyond it only what a listener has not read yet is held, and
    answers that are heard for the cache, which have as much again, are not kept."""
    semantic: SemanticConfig = SemanticConfig()
