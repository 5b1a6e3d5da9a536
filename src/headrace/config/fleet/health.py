"""Health: when a replica is left alone, and when it is tried again."""

from typing import Annotated

from msgspec import Meta, Struct


class HealthConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Active probes, passive ejection, circuit breakers."""

    probe_period: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 0.5
    """Seconds between two probes of a replica."""
    probe_timeout: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 1.0
    """Seconds after which a probe has failed."""
    probe_failures: Annotated[int, Meta(ge=1)] = 2
    """Failed probes in a row after which a replica gets nothing more."""
    probe_successes: Annotated[int, Meta(ge=1)] = 1
    """Good probes in a row after which it is used again."""
    breaker_failures: Annotated[int, Meta(ge=1)] = 5
    """Failed requests in a row that open a replica's circuit."""
    breaker_open: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 5.0
    """Seconds that it stays open the first time; doubled each time up to ten times as long."""
    slow_start: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 10.0
    """Seconds over which a replica that came (back) grows to its full share."""
    outlier_factor: Annotated[float, Meta(gt=1)] = 3.0
    """A replica whose time to first token per work is this many times the median is slow: it gets less, not nothing."""
    panic_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """If less than this share of a model's replicas is healthy by failed requests alone, they are all used. The last
    healthy one is never ejected for failed requests."""
