"""Autoscaling: how many replicas pools have, and how that is decided."""

import re
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.core.errors import ConfigError

_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")
Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
Delay = Annotated[float, Meta(ge=0, extra={"unit": "seconds"})]
Share = Annotated[float, Meta(gt=0, le=1)]


class PolicyKind(StrEnum):
    """What the number of replicas goes by."""

    QUEUE = "queue"
    """Requests that wait, and how long."""
    SLOTS = "slots"
    """Sequences that run of those that could, and KV blocks in use."""
    TOKENS_PER_SECOND = "tokens_per_second"
    """Tokens that come in against what replicas have been seen to process, and how long requests wait."""
    SLO = "slo"
    """Latencies against their objectives."""
    SCHEDULE = "schedule"
    """The rules of `schedule` alone."""
    PREDICTIVE = "predictive"
    """tokens_per_second, and never fewer than what is forecast for when a replica started now would be ready."""
    UTILISATION = "utilisation"
    """Use of CPU or GPU alone: what most autoscalers do, here to compare with."""


class Day(StrEnum):
    """Days of the week."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


class ScheduleRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At these times never fewer replicas than this, whatever the policy says."""

    replicas: Annotated[int, Meta(ge=0)]
    """Replicas that there are then at least."""
    days: tuple[Day, ...] = tuple(Day)
    """Days on which it begins: mon to sun; default all."""
    start: str = "00:00"
    """From this time on: HH:MM in the schedule's time zone."""
    end: str = "24:00"
    """Until this time, up to 24:00; earlier than the start: of the next day."""

    def __post_init__(self) -> None:
        """Raises ConfigError for what is no time of day, and for a rule that holds never."""
        for name, text in (("start", self.start), ("end", self.end)):
            if not _TIME.fullmatch(text):
                raise ConfigError(f"schedule: {name} must be HH:MM, not '{text[:20]}'.")
        if self.start == self.end or self.start == "24:00" or not self.days:
            raise ConfigError(f"schedule: a rule from {self.start} to {self.end} holds never.")


class QueueTargets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a queue is too much."""

    per_replica: Annotated[float, Meta(gt=0)] = 4.0
    """Waiting requests that one more replica is started for."""
    wait: Seconds = 1.0
    """Seconds that a request may wait before another replica is started for it."""


class SlotTargets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How full replicas should be."""

    use: Share = 0.75
    """Share of the sequences that they can run at once."""
    kv: Share = 0.8
    """Share of KV blocks in use."""


class TokenTargets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of what a replica can process should come to it."""

    load: Share = 0.87
    """Share of the tokens a second that a replica can process, as far as is known."""
    prompt_weight: Annotated[float, Meta(gt=0)] = 0.2
    """What a token of a prompt that is not cached counts beside one of an answer: prefill costs less per token."""
    replica_tokens_per_second: Annotated[float, Meta(gt=0)] | None = None
    """Weighted tokens a second that one replica can process; default what is seen."""


class Objectives(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latencies that should hold for 95 of 100 requests; those that are not set are not looked at."""

    ttft: Seconds | None = None
    """Seconds to the first token, the time in the gateway's queue included."""
    tpot: Seconds | None = None
    """Seconds per output token behind the first, a request's mean."""
    itl: Seconds | None = None
    """Seconds between two tokens of a stream: a request's mean."""
    attainment: Share | None = None
    """Share of requests within the objectives; below it a replica is added."""
    margin: Share = 0.8
    """Going down keeps latencies below this share of the objectives, as they would be with one replica less."""
    idle_use: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """Below this share of slots in use, and with nothing waiting, slow answers are no matter of how many replicas there are."""

    def slowness(
        self, *, ttft: float | None, tpot: float | None, itl: float | None
    ) -> float | None:
        """The worst of these latencies in shares of its objective. None: none is known that has one."""
        pairs = ((ttft, self.ttft), (tpot, self.tpot), (itl, self.itl))
        known = [seen / bound for seen, bound in pairs if seen is not None and bound is not None]
        return max(known, default=None)

    @property
    def is_set(self) -> bool:
        """There is anything to hold."""
        return any(x is not None for x in (self.ttft, self.tpot, self.itl, self.attainment))


class ForecastConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the near future is guessed from what was."""

    season: Seconds = 86_400.0
    """Seconds after which traffic looks alike: a day."""
    bucket: Seconds = 300.0
    """Seconds that are looked at as one; season / bucket is bounded by 2016."""
    safety: Annotated[float, Meta(ge=0)] = 1.1
    """The forecast is taken this many times."""
    min_lead: Seconds = 60.0
    """Seconds ahead, at least; a measured cold start that is longer counts instead."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a season of too many or too few buckets."""
        if not 4 <= self.season / self.bucket <= 2016:
            raise ConfigError("forecast: a season must have 4 to 2016 buckets.")


def zone(name: str) -> tzinfo:
    """A time zone; UTC needs no data of the system. Raises ConfigError if there is none of this name."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # only where it is needed

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ConfigError(f"There is no time zone '{name[:60]}'.") from None


class ScalingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the size of a pool is decided."""

    policy: PolicyKind = PolicyKind.TOKENS_PER_SECOND
    """queue, slots, tokens_per_second, slo, schedule, predictive or utilisation."""
    up_delay: Delay = 0.0
    """Seconds that more must be wanted before there are more."""
    down_delay: Delay = 300.0
    """Seconds that less must be wanted before there are fewer."""
    burst_memory: Delay = 3600.0
    """Seconds for which as many are kept as the largest burst needed to be within slo.ttft; 0: bursts are forgotten. For
    tokens_per_second and predictive; without slo.ttft it is not told what a burst needs."""
    down_pause: Delay = 30.0
    """Seconds between two steps down."""
    zero_delay: Delay = 300.0
    """Seconds without a request before a pool with min_replicas 0 goes to sleep; counted together with down_delay."""
    tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """A need that is so little above what there is changes nothing."""
    down_margin: Share = 0.85
    """Going down needs the load of those that stay to be below this share of their target."""
    max_step_up: Annotated[int, Meta(ge=1)] = 4
    """Replicas that are added at once; where there are more than that, they may double."""
    max_step_down: Annotated[int, Meta(ge=1)] = 1
    """Replicas that are taken away at once."""
    queue: QueueTargets = QueueTargets()
    slots: SlotTargets = SlotTargets()
    tokens: TokenTargets = TokenTargets()
    slo: Objectives = Objectives()
    utilisation: Share = 0.7
    """Use of CPU or GPU that the policy utilisation aims at."""
    schedule: tuple[ScheduleRule, ...] = ()
    """Floors by time of day; they hold under every policy."""
    timezone: str = "UTC"
    """Time zone of the schedule, such as Europe/Berlin."""
    forecast: ForecastConfig = ForecastConfig()

    def __post_init__(self) -> None:
        """Raises ConfigError for a policy without what it goes by, and a time zone that does not exist."""
        if self.policy is PolicyKind.SLO and not self.slo.is_set:
            raise ConfigError(
                "The policy slo needs an objective under slo: ttft, tpot, itl or attainment."
            )
        if self.policy is PolicyKind.SCHEDULE and not self.schedule:
            raise ConfigError("The policy schedule needs rules under schedule.")
        zone(self.timezone)


class DecisionLogConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where decisions are kept."""

    kept: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Decisions kept in memory, for the admin API and the dashboard."""
    file: str | None = None
    """File that they are appended to, a JSON object a line; default none."""
    max_bytes: Annotated[int, Meta(ge=65_536, extra={"unit": "bytes"})] = 64 * 1024 * 1024
    """Size at which the file is put aside as FILE.1, in place of the one before."""


class RolloutConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replacing replicas by those of another version or model."""

    surge: Annotated[int, Meta(ge=1)] = 1
    """Replicas that there may be beyond what is wanted, while old ones are replaced."""
    max_error_rate: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of failed requests of the new ones, beyond that of the old ones, at which all goes back."""
    min_requests: Annotated[int, Meta(ge=1)] = 20
    """Requests of the new ones before their error rate counts."""
    max_failed_starts: Annotated[int, Meta(ge=1)] = 3
    """New ones that fail to start before all goes back."""


class AutoscalerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loop that looks, decides and acts."""

    period: Seconds = 2.0
    """Seconds between two looks at instances, and between two decisions. A request for a sleeping pool is acted on at once."""
    window: Seconds = 60.0
    """Seconds that rates and percentiles cover."""
    warmup: Delay = 15.0
    """Seconds after a replica is ready in which its latencies do not count."""
    advisory: bool = False
    """Only log what would be done."""
    budget: Annotated[float, Meta(gt=0)] | None = None
    """Money an hour for all pools together, by their hourly_cost; what would exceed it is not started."""
    scaling: ScalingConfig = ScalingConfig()
    """How pools are scaled."""
    pools: dict[str, ScalingConfig] = {}
    """By the name of a pool: instead of `scaling`."""
    start_timeout: Seconds = 600.0
    """Seconds after which a replica that is not ready counts as failed; a model that is fetched first counts too."""
    unready_timeout: Seconds = 60.0
    """Seconds after which a replica that was ready, and is not any more, is replaced."""
    drain_timeout: Seconds = 120.0
    """Seconds that requests of a replica which is to stop may still take."""
    min_backoff: Seconds = 2.0
    """Seconds before a replica that failed is replaced; doubled with each that fails in a row."""
    max_backoff: Seconds = 120.0
    """Longest such wait."""
    rollout: RolloutConfig = RolloutConfig()
    decisions: DecisionLogConfig = DecisionLogConfig()

    def of(self, pool: str) -> ScalingConfig:
        """How this pool is scaled."""
        return self.pools.get(pool, self.scaling)
