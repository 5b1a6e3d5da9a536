"""Answers that the gateway makes of what it knows of its replicas."""

from headrace.api.models import ModelCard, ModelList
from headrace.fleet.registry import Registry


def model_list(registry: Registry) -> ModelList:
    """Every name that a replica serves; its context is the largest that any of them has."""
    return ModelList(
        data=[
            ModelCard(
                id=name,
                created=0,
                root=name,
                max_model_len=max((r.max_context or 0 for r in replicas), default=0),
            )
            for name, replicas in sorted(registry.models().items())
        ]
    )
