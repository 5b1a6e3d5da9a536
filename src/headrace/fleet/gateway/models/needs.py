"""What a request needs of a replica, and which replicas have it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from headrace.config.fleet.replicas import Capability
from headrace.fleet.gateway.models.values import Target

#: A tuple: what stands there may be no text, and not hashable.
_IMAGES = ("image_url", "input_image", "image")
_GUIDED = frozenset(
    {
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "grammar",
        "json_schema",
    }
)

Replica = TypeVar("Replica")


class Needs(Struct, frozen=True, kw_only=True):
    """What a replica must be able to do."""

    capabilities: frozenset[Capability] = frozenset()
    context: int = 0
    """Tokens of prompt and answer together, estimated."""


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a replica."""

    capabilities: frozenset[Capability]
    max_context: int | None = None
    version: str = ""
    labels: Mapping[str, str] = {}


class Suitable(NamedTuple):
    """Replicas that may serve a request, and where there are none, why."""

    replicas: Sequence[Any]
    lacking: str = ""
    """What no replica has: `vision`, or `version v2`."""


def read_needs(
    body: Mapping[str, Any],
    endpoint: Iterable[Capability],
    *,
    prompt_tokens: int,
    output_tokens: int,
) -> Needs:
    """Of a decoded body; `endpoint` is what its endpoint needs whatever the body says."""
    found = set(endpoint)
    if (body.get("tools") or body.get("functions")) and body.get("tool_choice") != "none":
        found.add(Capability.TOOLS)
    form = body.get("response_format")
    if (isinstance(form, dict) and form.get("type") not in (None, "text")) or (
        not _GUIDED.isdisjoint(body) and any(body.get(name) for name in _GUIDED)
    ):
        found.add(Capability.STRUCTURED)
    if _has_image(body.get("messages")) or _has_image(body.get("input")):
        found.add(Capability.VISION)
    return Needs(capabilities=frozenset(found), context=prompt_tokens + output_tokens)


def _has_image(turns: object) -> bool:
    if not isinstance(turns, list):
        return False
    contents = (turn.get("content") for turn in turns if isinstance(turn, dict))
    return any(
        isinstance(part, dict) and part.get("type") in _IMAGES
        for content in contents
        if isinstance(content, list)
        for part in content
    )


def suitable(
    needs: Needs, target: Target, replicas: Sequence[Replica], facts: Callable[[Replica], Facts]
) -> Suitable:
    """Those of the target that can do what is needed.

    Length is estimated, so it only orders: replicas that are too small are left out while others are there, and where all are too
    small they are all kept, for one of them to count the tokens and say so.
    """
    known = [(replica, facts(replica)) for replica in replicas]
    if all(fits(needs, target, f) for _, f in known):  # nearly always
        return Suitable(replicas)
    chosen = [(r, f) for r, f in known if target.selects(f.version, f.labels)]
    if known and not chosen:
        return Suitable((), f"{target}")
    able = [(r, f) for r, f in chosen if needs.capabilities <= f.capabilities]
    if chosen and not able:
        missing = needs.capabilities - frozenset().union(*(f.capabilities for _, f in chosen))
        return Suitable((), ", ".join(sorted(missing or needs.capabilities)))
    fitting = [r for r, f in able if f.max_context is None or f.max_context >= needs.context]
    return Suitable(fitting or [r for r, _ in able])


def fits(needs: Needs, target: Target, facts: Facts) -> bool:
    """It is one of the target's, it can do what is needed, and it is large enough."""
    is_large = facts.max_context is None or facts.max_context >= needs.context
    return (
        is_large
        and needs.capabilities <= facts.capabilities
        and target.selects(facts.version, facts.labels)
    )
