"""What `headrace bench` can be told."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.secret import Secret


class Arrivals(StrEnum):
    """How requests of an open loop are spaced."""

    POISSON = "poisson"
    CONSTANT = "constant"


class BenchOptions(Struct, frozen=True, kw_only=True):
    """One measurement: a target, a load, and what to report."""

    url: str = "http://127.0.0.1:8000"
    """Base URL of any OpenAI-compatible server, with or without /v1."""
    model: str | None = None
    """Model to name in requests; default the first that the server lists."""
    api_key: Secret | None = None
    """Key sent as a bearer token; default the variable OPENAI_API_KEY."""
    chat: bool = False
    """Ask /v1/chat/completions instead of /v1/completions."""
    concurrency: tuple[Annotated[int, Meta(ge=1, le=16_384)], ...] = ()
    """Closed loop: this many clients, each sending its next request when the last is answered; one run
    per number (1,4,16 if neither --rate nor --trace is given)."""
    rate: tuple[Annotated[float, Meta(gt=0.0)], ...] = ()
    """Open loop: requests per second, whatever the server does; one run per number."""
    arrivals: Arrivals = Arrivals.POISSON
    """Spacing of an open loop: poisson or constant."""
    num_requests: Annotated[int, Meta(ge=0)] = 0
    """Requests per run; 0: twice the clients and at least 4, 30 seconds' worth of a rate, or the whole
    trace."""
    input_words: Annotated[int, Meta(ge=1)] = 256
    """Random words per prompt; each is one token in most vocabularies."""
    shared_words: Annotated[int, Meta(ge=0)] = 0
    """Words that all prompts begin with, before their own."""
    output_tokens: Annotated[int, Meta(ge=1)] = 128
    """Tokens of each answer."""
    ignore_eos: bool = True
    """Send ignore_eos, so that every answer has its full length; off for servers that refuse it."""
    trace: str | None = None
    """File of recorded requests: Mooncake JSONL or Azure CSV. Lengths (and prefixes that requests share)
    come from it, and arrivals unless --rate or --concurrency is given."""
    trace_speed: Annotated[float, Meta(gt=0.0)] = 1.0
    """Play the trace's arrivals this many times faster."""
    trace_scale: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Multiply the trace's lengths by this."""
    max_input_tokens: Annotated[int, Meta(ge=0)] = 0
    """Cut longer prompts of a trace; 0 does not."""
    max_output_tokens: Annotated[int, Meta(ge=0)] = 0
    """Cut longer answers of a trace; 0 does not."""
    max_in_flight: Annotated[int, Meta(ge=1)] = 2048
    """Open loop: a request that comes while this many run is not sent and counts as an error."""
    timeout: Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})] = 600.0
    """Time after which a request is given up."""
    slo: str | None = None
    """Bounds for goodput, such as ttft=500ms,itl=50ms; also tpot and e2e. A request is good if it meets
    all; itl bounds the 95th percentile of its gaps."""
    seed: Annotated[int, Meta(ge=0)] | None = None
    """Seed of words and arrivals; default the time, so that no run finds another's prompts in a cache."""
    json: str | None = None
    """File for the report as JSON; - is standard output, with the table on standard error."""
