"""What `headrace simulate` can be told."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.fleet.routing import RoutingPolicy
from headrace.config.fleet.scaling import PolicyKind

Seconds = Annotated[float, Meta(gt=0.0, extra={"unit": "seconds"})]
Duration = Annotated[float, Meta(ge=0.0, extra={"unit": "seconds"})]


class Mode(StrEnum):
    """How closely replicas are followed."""

    FLEET = "fleet"
    """Replicas count tokens and slots: a hundred of them for a day in minutes."""
    DETAILED = "detailed"
    """Every step of the real scheduler, memory ledger and gateway."""


class Curve(StrEnum):
    """How the load changes over a day."""

    FLAT = "flat"
    DAY = "day"
    """Lowest at three in the morning, highest at three in the afternoon."""


class LoadOptions(Struct, frozen=True, kw_only=True):
    """Requests: when they come and how long they are."""

    trace: str | None = None
    """File of recorded requests: Mooncake JSONL or Azure CSV; it begins again when it is over. Default a synthetic load."""
    duration: Seconds = 600.0
    """Simulated time, such as 10m or 24h."""
    rate: Annotated[float, Meta(gt=0.0)] | None = None
    """Requests per second, on average; default the trace's own rate, or 1."""
    sources: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Play so many copies of the trace at once, each from another place on: a higher rate with bursts as long as recorded."""
    trace_speed: Annotated[float, Meta(gt=0.0)] = 1.0
    """Play the trace's arrivals this many times faster, where no rate is given."""
    trace_scale: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Multiply the trace's lengths by this."""
    max_input_tokens: Annotated[int, Meta(ge=0)] = 0
    """Cut longer prompts; 0: at the replicas' context."""
    max_output_tokens: Annotated[int, Meta(ge=0)] = 0
    """Cut longer answers; 0: at half the replicas' context."""
    input_tokens: Annotated[int, Meta(ge=1)] = 512
    """Mean prompt of a synthetic load."""
    output_tokens: Annotated[int, Meta(ge=1)] = 128
    """Mean answer of a synthetic load."""
    variation: Annotated[float, Meta(ge=0.0, le=10.0)] = 1.0
    """Standard deviation of a synthetic load's lengths, in means; 0: all are alike."""
    shared_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens that all prompts of a synthetic load begin with, in whole blocks of 512."""
    curve: Curve = Curve.FLAT
    """flat, or day: a daily curve over the arrivals."""
    day_length: Seconds = 86_400.0
    """Length of the curve's day; less compresses it."""
    peak_ratio: Annotated[float, Meta(ge=1.0, le=100.0)] = 4.0
    """Load at the top of the daily curve, in loads at its bottom."""


class PlaceOptions(Struct, frozen=True, kw_only=True):
    """Where replicas run, and what goes wrong there."""

    profile: str = "smollm2-135m"
    """What a replica costs in time: a built-in profile, or a file that --calibrate wrote."""
    boot_time: Duration | None = None
    """From the order of a replica to its first request; default the profile's."""
    boot_failures: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Share of starts that fail, after their boot time."""
    kill_every: Duration = 0.0
    """Mean time between sudden ends of a replica that serves; 0: none."""
    hourly_cost: Annotated[float, Meta(ge=0.0)] | None = None
    """What a replica costs an hour; default what the pool of --fleet says, else 1."""


class ScaleOptions(Struct, frozen=True, kw_only=True):
    """How many replicas there are, and who decides."""

    replicas: Annotated[int, Meta(ge=0, le=10_000)] = 4
    """Replicas at the start; all of a fixed fleet."""
    policy: PolicyKind | None = None
    """Scale by this policy of the autoscaler: queue, slots, tokens_per_second, slo, predictive or utilisation. Default
    that of --fleet, else the fleet is fixed."""
    min_replicas: Annotated[int, Meta(ge=0)] | None = None
    """Never fewer; default the pool's in --fleet, else 1."""
    max_replicas: Annotated[int, Meta(ge=1)] | None = None
    """Never more; default the pool's in --fleet, else 10000."""
    fleet: str | None = None
    """A fleet.yaml, whose autoscaler settings count."""
    pool: str | None = None
    """The pool of --fleet that is simulated; default its first."""


class SimulateOptions(Struct, frozen=True, kw_only=True):
    """One simulation: a load, a place, and who decides."""

    mode: Mode = Mode.FLEET
    """fleet: replicas that count tokens, for long runs; detailed: every step of the real scheduler and gateway."""
    load: LoadOptions = LoadOptions()
    place: PlaceOptions = PlaceOptions()
    scale: ScaleOptions = ScaleOptions()
    routing: RoutingPolicy = RoutingPolicy.STICKY
    """How the gateway chooses among replicas; see `headrace gateway`."""
    slo: str = "ttft=2s,tpot=150ms"
    """What a good request keeps: ttft, tpot and e2e with a duration each."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of all chance: the same one gives the same run."""
    calibrate: str | None = None
    """Measure the server at this URL instead of simulating, and write its profile; its bearer token is OPENAI_API_KEY."""
    out: str = "profile.json"
    """File for the profile that --calibrate makes."""
    step_tokens: Annotated[int, Meta(ge=16)] = 512
    """The measured server's --max-num-batched-tokens, which it does not tell."""
    json: str | None = None
    """File for the report as JSON; - is standard output, with the table on standard error."""
    svg: str | None = None
    """File for a picture of load and replicas over time."""
