"""The gateway's HTTP side: where it listens, how long it waits, how often it tries again."""

from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.secret import Secret

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]


class TimeoutConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a replica may take; then another one is tried, or the client is told."""

    connect: Seconds = 2.0
    """Seconds for a connection."""
    first_token: Seconds = 120.0
    """Seconds from sending the request to the first byte of its answer's body."""
    between_tokens: Seconds = 30.0
    """Seconds without a byte in the middle of an answer."""
    total: Seconds = 900.0
    """Seconds for a request in all, every attempt included."""


class RetryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other replicas, after one has failed."""

    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """Replicas that a request may be sent to in all, as long as its client has had no byte."""
    backoff: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 0.05
    """Seconds before the second attempt on the same replica or model; doubled each time, with jitter."""
    budget: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Retries per request over the last 10 seconds, beside ten that are always there: no storm of retries."""
    resume_attempts: Annotated[int, Meta(ge=0, le=10)] = 3
    """Replicas that may go on with an answer that broke off in the middle; 0 tells the client instead."""
    patience: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 10.0
    """Seconds that a request whose replica failed waits for another one, while none is ready."""
    hedge_after: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] | None = None
    """Seconds without a first byte after which a second replica is asked too; the first answer counts."""


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gateway process."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""
    timeouts: TimeoutConfig = TimeoutConfig()
    retries: RetryConfig = RetryConfig()
    admin_keys: Secret | None = None
    """Keys of `headrace fleet` and /admin, separated by commas; without one there is no admin API."""
    max_connections: Annotated[int, Meta(ge=1)] = 8_000
    """Client connections that may be open."""
    max_idle_connections: Annotated[int, Meta(ge=0)] = 64
    """Connections to each replica that are kept open without a request."""
    max_body_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 16 * 1024 * 1024
    """Largest request body."""
    max_buffered_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 256 * 1024 * 1024
    """Bytes of all request bodies that are held; more are answered 429."""
    max_response_bytes: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 64 * 1024 * 1024
    """Largest answer in one piece that a replica may give."""
    max_stream_buffer: Annotated[int, Meta(ge=1024, extra={"unit": "bytes"})] = 256 * 1024
    """Bytes of one stream that wait for a slow client; then the replica is not read either."""
    read_timeout: Seconds = 30.0
    """Seconds in which a request, headers and body, must arrive."""
    stall_timeout: Seconds = 30.0
    """Seconds that a client may stop reading its answer before it is cut off."""
    drain_timeout: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 30.0
    """Seconds that running requests get after SIGTERM."""
    default_max_tokens: Annotated[int, Meta(ge=1)] = 1024
    """Output that is reckoned with for a request that sets no bound."""
    chars_per_token: Annotated[float, Meta(gt=0)] = 4.0
    """Characters of prompt that are reckoned as one token, until replicas have told better."""
    max_stored_responses: Annotated[int, Meta(ge=0)] = 50_000
    """Responses of /v1/responses of which is remembered which replica keeps them; of others replicas are asked."""
    stored_response_ttl: Seconds = 3600.0
    """Seconds for which that is remembered: what replicas are configured to keep them for."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "text"
    """text or json."""
