"""What was observed of a server, and what is concluded. None is "not told", never zero. Times are seconds."""

from enum import StrEnum

from msgspec import Struct


class ServerKind(StrEnum):
    """Whose metrics these are."""

    HEADRACE = "headrace server"
    GATEWAY = "headrace gateway"
    VLLM = "vLLM"
    OTHER = "server without metrics"


class Part(StrEnum):
    """Where the time of a request goes."""

    NETWORK = "network"
    TOKENISATION = "tokenisation"
    QUEUEING = "queueing"
    PREFILL = "prefill"
    DECODE = "decode"


class Traffic(Struct, frozen=True, kw_only=True):
    """What its metrics told over a while. Means are of requests that ended in it."""

    seconds: float = 0.0
    requests: float = 0.0
    """That ended."""
    running: float | None = None
    waiting: float | None = None
    max_running: float | None = None
    kv_usage: float | None = None
    """0..1."""
    queue: float | None = None
    ttft: float | None = None
    prefill: float | None = None
    decode: float | None = None
    prompt_tokens: float | None = None
    """Of a request, mean."""
    output_tokens: float | None = None
    hit_share: float | None = None
    """Share of the prompt tokens that came out of a prefix cache."""
    preemptions: float | None = None
    """In this time."""
    replicas: float | None = None
    """Ready ones, of a gateway."""


class Probe(Struct, frozen=True, kw_only=True):
    """What a few requests of ours took, beside whatever else the server did."""

    round_trip: float | None = None
    """Of a question that costs nothing."""
    tokenise: float | None = None
    """Per token."""
    prefill: float | None = None
    """Per token of a prompt that no cache knows."""
    first_token: float | None = None
    """Of a prompt of a few tokens."""
    tpot: float | None = None
    """Of one stream alone."""
    batch: int = 1
    batch_tpot: float | None = None
    """Of so many streams at once."""


class Model(Struct, frozen=True, kw_only=True):
    """What the server tells of its model."""

    weight_bytes: float | None = None
    parameters: float | None = None
    kv_bytes: float | None = None
    """Per token."""
    kv_format: str = ""


class Hardware(Struct, frozen=True, kw_only=True):
    """What the server's machine can do at most."""

    memory: float | None = None
    """Bytes a second."""
    compute: float | None = None
    """Operations a second in the server's arithmetic (a multiplication and an addition are two)."""
    source: str = ""
    """How that is known."""


class Observations(Struct, frozen=True, kw_only=True):
    """All that a verdict goes by."""

    kind: ServerKind = ServerKind.OTHER
    traffic: Traffic = Traffic()
    probe: Probe = Probe()
    model: Model = Model()
    hardware: Hardware = Hardware()


class Finding(Struct, frozen=True, kw_only=True):
    """A change that would help."""

    change: str
    """In a few words."""
    gain: float
    """Share of a mean request's time that it would save, 0..1; an estimate."""
    because: str
    """One sentence with the figures."""


class Analysis(Struct, frozen=True, kw_only=True):
    """The verdict."""

    bound: Part | None
    """Where most of the time goes; None: nothing is known of it."""
    seconds: dict[str, float]
    """Of a mean request, by part."""
    basis: str
    """Whose requests: the server's own traffic, or the probe's."""
    sentences: tuple[str, ...]
    """What was found, the most important first."""
    findings: tuple[Finding, ...]
    """Changes, the most helpful first."""
    unknown: tuple[str, ...]
    """What could not be said, and what would be needed."""
