"""Flow control: who waits, how long, in which order, and who is sent away."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.core.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]


class QueueOrder(StrEnum):
    """Which of one tenant's requests is next."""

    FCFS = "fcfs"
    """The one that came first."""
    EDF = "edf"
    """The one whose first token is due first: `ttft` after it came, or what its header x-slo-ttft-ms says."""


class QueueBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may wait; the first bound that is reached counts."""

    requests: Annotated[int, Meta(ge=0)] = 1000
    """Requests that wait."""
    tokens: Annotated[int, Meta(ge=0)] = 8_000_000
    """Their tokens, prompts and expected answers together."""
    bytes: Annotated[int, Meta(ge=0, extra={"unit": "bytes"})] = 256 * 1024 * 1024
    """Their bodies."""


class PriorityClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one importance. A key's class comes from the key, never from the client."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    rank: int = 0
    """Higher goes first."""
    ttft: Seconds | None = None
    """Seconds in which a first token is promised: what `edf` goes by, and a longer queue counts as full for
    sheddable classes below."""
    max_wait: Seconds = 60.0
    """Seconds in the queue after which the answer is 429."""
    sheddable: bool = False
    """It is turned away little by little before queues are full, and its waiting requests give way to higher classes."""
    min_share: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    """Share of the tokens that it gets while it waits, however much waits in classes above."""
    order: QueueOrder = QueueOrder.FCFS
    """fcfs or edf: which of one tenant's requests is next."""
    bounds: QueueBounds = QueueBounds()
    """What of it may wait for one model."""


class FlowConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue in front of the replicas: requests wait here, not there."""

    classes: tuple[PriorityClass, ...] = (PriorityClass(name="standard"),)
    default_class: str = ""
    """Class of keys that name none; default the one of lowest rank that is not sheddable, else the lowest."""
    tenant_bounds: QueueBounds = QueueBounds(requests=250, tokens=4_000_000, bytes=64 * 1024 * 1024)
    """What of one tenant may wait for one model in one class."""
    total_bounds: QueueBounds = QueueBounds(
        requests=10_000, tokens=64_000_000, bytes=1024 * 1024 * 1024
    )
    """What may wait in all."""
    input_weight: Annotated[float, Meta(ge=0)] = 1.0
    """What a prompt token counts in the account of a tenant's share."""
    output_weight: Annotated[float, Meta(ge=0)] = 2.0
    """What a token of an answer counts."""
    burst: Annotated[float, Meta(ge=0)] = 8000.0
    """Weighted tokens by which a tenant that used less than its share may be ahead of one that always waits: its small
    bursts are served at once."""
    cold_wait: Annotated[float, Meta(ge=0, extra={"unit": "seconds"})] = 60.0
    """Seconds that a request waits for a model that has no ready replica; then the answer is 503."""
    shed_from: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """How full queues are when the first sheddable requests are turned away; at 1 all of them are."""

    def __post_init__(self) -> None:
        """Raises ConfigError for classes that contradict each other."""
        names = [kind.name for kind in self.classes]
        if not names:
            raise ConfigError("flow.classes needs at least one class.")
        if len(set(names)) < len(names):
            raise ConfigError("flow.classes has two classes of one name.")
        if len({kind.rank for kind in self.classes}) < len(names):
            raise ConfigError("flow.classes has two classes of one rank.")
        if sum(kind.min_share for kind in self.classes) >= 1:
            raise ConfigError("flow.classes: the sum of min_share must be below 1.")
        if self.default_class and self.default_class not in names:
            raise ConfigError(
                f"flow.default_class '{self.default_class}' is no class of flow.classes."
            )

    @property
    def usual_class(self) -> str:
        """`default_class`, or what it defaults to."""
        firm = [kind for kind in self.classes if not kind.sheddable] or list(self.classes)
        return self.default_class or min(firm, key=lambda kind: kind.rank).name
