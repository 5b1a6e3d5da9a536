"""One replica as the gateway knows it: what it is, whether it can be used, and what it has to do."""

from enum import StrEnum

from msgspec import Struct

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.core.stats import ReplicaRole, ReplicaState
from headrace.fleet.backends.values import Backend
from headrace.fleet.breaker import Breaker, Circuit
from headrace.fleet.latency import Latency
from headrace.fleet.load import Lease, Load
from headrace.fleet.upstream.pool import Pool

#: Requests that a replica gets at once where nothing is said and it does not tell its batch size.
DEFAULT_CONCURRENCY = 256


class Report(Struct, frozen=True, kw_only=True):
    """What a probe found. None is "not told", never zero."""

    state: ReplicaState
    models: tuple[str, ...] = ()
    max_context: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    max_num_seqs: int | None = None
    outstanding_tokens: int | None = None
    kv_usage: float | None = None
    uptime: float | None = None
    prefix_hit_rate: float | None = None
    busy: float | None = None
    """Share of the last seconds that it computed, 0..1."""
    version: str | None = None


class Standing(StrEnum):
    """Whether a replica can be used."""

    READY = "ready"
    UNKNOWN = "unknown"
    """Not probed yet."""
    UNREADY = "unready"
    """Its probes fail, or it says that it is not ready."""
    EJECTED = "ejected"
    """Its circuit is open: requests failed."""
    DRAINING = "draining"
    """It finishes what it has, by our word or its own."""


class Replica:
    """Identity is `id`; it outlives requests, reloads of the configuration and failures."""

    def __init__(
        self, spec: ReplicaSpec, backend: Backend, pool: Pool, health: HealthConfig
    ) -> None:
        self.id = spec.name
        self._spec = spec
        self.capabilities = frozenset(spec.capabilities)
        self.backend = backend
        """What it speaks."""
        self.pool = pool
        self.load = Load()
        self.latency = Latency()
        self.breaker = Breaker(health.breaker_failures, health.breaker_open)
        self.report: Report | None = None
        """Of the last good probe."""
        self.is_draining = False
        """Told so by an operator, or it left the list."""
        self.ready_since: float | None = None
        """`Clock.monotonic` since which probes are good."""
        self.last_failure = ""
        """Of a request, in words for the log."""
        self.reason = "not probed yet"
        """Why it is not ready."""

    @property
    def spec(self) -> ReplicaSpec:
        """As it is configured now."""
        return self._spec

    @spec.setter
    def spec(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        self.capabilities = frozenset(spec.capabilities)

    @property
    def answers(self) -> bool:
        """It makes whole answers: one for prefill alone does not."""
        return self._spec.role is not ReplicaRole.PREFILL

    @property
    def models(self) -> tuple[str, ...]:
        """Names that it serves."""
        return self._spec.models or (self.report.models if self.report is not None else ())

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and answer together, if known."""
        told = self.report.max_context if self.report is not None else None
        return self.spec.max_context or told

    @property
    def max_requests(self) -> int:
        """Requests that it should have at once: two batches, so that it is never idle and its queue stays short."""
        if self.spec.max_concurrency is not None:
            return self.spec.max_concurrency
        told = self.report.max_num_seqs if self.report is not None else None
        return 2 * told if told else DEFAULT_CONCURRENCY

    def standing(self, now: float) -> Standing:
        """Whether it gets requests; EJECTED only for failed requests."""
        if self.is_draining:
            return Standing.DRAINING
        if self.ready_since is None:
            return Standing.UNKNOWN if self.report is None else Standing.UNREADY
        if self.report is not None and self.report.state is ReplicaState.DRAINING:
            return Standing.DRAINING
        if self.breaker.state(now) is Circuit.OPEN:
            return Standing.EJECTED
        return Standing.READY

    def apply(self, health: HealthConfig, timeouts: TimeoutConfig) -> None:
        """The configuration was read again: this is what counts from the next request on."""
        self.breaker.max_failures = health.breaker_failures
        self.breaker.open_seconds = health.breaker_open
        self.pool.timeouts = timeouts

    def lease(self, *, prefill_tokens: int, decode_tokens: int) -> Lease:
        """Count a request in, before it is sent."""
        return Lease(self.load, prefill_tokens=prefill_tokens, decode_tokens=decode_tokens)

    def share(self, now: float, slow_start: float) -> float:
        """Its weight, grown from a tenth to the whole over `slow_start` seconds."""
        if self.ready_since is None or slow_start <= 0:
            return self.spec.weight
        age = max(0.0, now - self.ready_since)
        return self.spec.weight * min(1.0, 0.1 + 0.9 * age / slow_start)
