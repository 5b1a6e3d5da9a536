"""Pools: replicas that are alike, and that headrace starts and stops by itself."""

import re
from collections.abc import Collection
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.fleet.replicas import Capability, Price
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaRole

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class DriverKind(StrEnum):
    """Who places replicas."""

    LOCAL = "local"
    """Processes on this machine."""
    RAY = "ray"
    KUBERNETES = "kubernetes"


class ResourcesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a replica gets for itself, where its place can give it."""

    cpus: Annotated[float, Meta(ge=0)] = 0.0
    """CPUs. local: whole ones, as many compute threads, tied to those that fewest replicas have; 0: it shares all."""
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    """GPUs, for ray."""
    memory: Annotated[int, Meta(ge=0, extra={"unit": "bytes"})] = 0
    """Bytes of memory, for ray; 0: it is not reckoned with."""


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one model, version, role and kind of machine."""

    name: str
    """Lower-case letters, digits and dashes."""
    model: str
    """What `headrace serve` is given: a short name, a file, `hf:…`, …"""
    driver: DriverKind = DriverKind.LOCAL
    """local, ray or kubernetes."""
    role: ReplicaRole = ReplicaRole.BOTH
    """both, prefill or decode."""
    version: str = ""
    """Any word for what is deployed; another one here is a rolling update."""
    min_replicas: Annotated[int, Meta(ge=0)] = 1
    """Never fewer; 0: the pool may sleep, and requests wait for it in the waiting room."""
    max_replicas: Annotated[int, Meta(ge=1)] = 4
    """Never more."""
    warm_replicas: Annotated[int, Meta(ge=0)] = 0
    """Beside those that serve: parked or pre-started, ready to take over in a moment. Not with kubernetes."""
    serve: dict[str, str | int | float | bool] = {}
    """Flags of `headrace serve` without their dashes, such as `max-num-seqs: 16`."""
    resources: ResourcesConfig = ResourcesConfig()
    capabilities: tuple[Capability, ...] | None = None
    """What it can do; default what replicas can do."""
    labels: dict[str, str] = {}
    """Whatever rules may select by."""
    price: Price = Price()
    """Money per million tokens, for routing and budgets."""
    hourly_cost: Annotated[float, Meta(ge=0)] = 0.0
    """What a replica costs an hour; of pools that serve one model, the cheapest grows first and the dearest shrinks first."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a name that cannot stand in labels and paths, and bounds that exclude each other."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"The pool's name '{self.name[:60]}' must be 1 to 40 lower-case letters, digits and dashes.",
                place="name",
            )
        if not self.model:
            raise ConfigError(f"The pool {self.name} has no model.", place="model")
        if self.min_replicas > self.max_replicas:
            raise ConfigError(
                f"The pool {self.name} has min_replicas {self.min_replicas} above max_replicas {self.max_replicas}.",
                place="min_replicas",
            )


def unknown_pool(name: str, names: Collection[str]) -> str:
    """The sentence for a name that none of these pools has."""
    near = get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"there are: {', '.join(list(names)[:20]) or 'none'}."
    )
    return f"There is no pool '{name[:200]}'; {hint}"
