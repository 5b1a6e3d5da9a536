"""Answers that the gateway makes of what it knows of its replicas."""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from headrace.core.errors import ModelNotFoundError
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica


class GatewayCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A name that the gateway answers to. What it does not know of it is left out."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    """The dialects of the replicas that serve it; headrace for names that lead to others."""
    max_model_len: int | None = None
    """The largest context of its replicas."""


class GatewayModels(Struct, frozen=True, kw_only=True):
    """All names."""

    object: Literal["list"] = "list"
    data: list[GatewayCard]


def model_list(
    registry: Registry, names: Sequence[str], may_use: Callable[[str], bool]
) -> GatewayModels:
    """Every name that a replica serves, and `names` that lead to one, as far as the caller may use them."""
    served = registry.models()
    cards = [_card(name, replicas) for name, replicas in served.items()]
    cards += [_card(name, ()) for name in names if name not in served]
    cards = [card for card in cards if may_use(card.id)]
    return GatewayModels(data=sorted(cards, key=lambda card: card.id))


def model_card(models: GatewayModels, name: str) -> GatewayCard:
    """One of them. Raises ModelNotFoundError."""
    for card in models.data:
        if card.id == name:
            return card
    raise ModelNotFoundError(name, tuple(card.id for card in models.data))


def _card(name: str, replicas: Sequence[Replica]) -> GatewayCard:
    return GatewayCard(
        id=name,
        object="model",
        created=0,
        owned_by=", ".join(sorted({str(r.spec.dialect) for r in replicas})) or "headrace",
        max_model_len=max((r.max_context or 0 for r in replicas), default=0) or None,
    )
