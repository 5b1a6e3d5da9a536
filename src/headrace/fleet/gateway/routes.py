"""Answers that the gateway makes of what it knows of its replicas."""

from collections.abc import Sequence

from headrace.api.models import ModelCard, ModelList
from headrace.fleet.registry import Registry


def model_list(registry: Registry, names: Sequence[str]) -> ModelList:
    """Every name that a replica serves, and `names` that lead to one; the context is the largest of its replicas."""
    served = registry.models()
    cards = [
        _card(name, max((r.max_context or 0 for r in replicas), default=0))
        for name, replicas in served.items()
    ]
    cards += [_card(name, 0) for name in names if name not in served]
    return ModelList(data=sorted(cards, key=lambda card: card.id))


def _card(name: str, max_context: int) -> ModelCard:
    return ModelCard(id=name, created=0, root=name, max_model_len=max_context)
