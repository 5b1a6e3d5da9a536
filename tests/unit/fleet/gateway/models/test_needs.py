"""What requests need, and which replicas have it."""

from typing import Any

import pytest

from headrace.config.fleet.replicas import Capability
from headrace.fleet.gateway.models.needs import Facts, Needs, read_needs, suitable
from headrace.fleet.gateway.models.values import Target

TOOLS, VISION, STRUCTURED = Capability.TOOLS, Capability.VISION, Capability.STRUCTURED
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}


@pytest.mark.parametrize(
    ("body", "needed"),
    [
        ({}, set()),
        ({"tools": [{}]}, {TOOLS}),
        ({"tools": [{}], "tool_choice": "none"}, set()),
        ({"functions": [{}]}, {TOOLS}),
        ({"response_format": {"type": "json_schema"}}, {STRUCTURED}),
        ({"response_format": {"type": "text"}}, set()),
        ({"guided_regex": "a+"}, {STRUCTURED}),
        (IMAGE, {VISION}),
        ({**IMAGE, "tools": [{}]}, {VISION, TOOLS}),
        ({"messages": "x", "input": 5, "tools": []}, set()),
        ({"messages": [None, {"content": [None, {"type": []}]}]}, set()),
    ],
)
def test_needs_of_a_body(body: dict[str, Any], needed: set[Capability]) -> None:
    found = read_needs(body, (), prompt_tokens=10, output_tokens=5)
    assert found == Needs(capabilities=frozenset(needed), context=15)


def test_the_endpoint_needs_too() -> None:
    needs = read_needs({}, (Capability.EMBEDDINGS,), prompt_tokens=1, output_tokens=0)
    assert needs.capabilities == {Capability.EMBEDDINGS}


FLEET = {
    "plain": Facts(capabilities=frozenset(), max_context=1000, version="v1"),
    "tools": Facts(capabilities=frozenset({TOOLS}), max_context=1000, version="v1"),
    "long": Facts(capabilities=frozenset({TOOLS}), max_context=9000, version="v2"),
    "eyes": Facts(capabilities=frozenset({VISION}), labels={"zone": "a"}),
}


def find(needs: Needs, target: Target = Target(model="m")) -> tuple[list[str], str]:  # noqa: B008
    found = suitable(needs, target, list(FLEET), FLEET.__getitem__)
    return list(found.replicas), found.lacking


def test_capabilities_are_a_must() -> None:
    assert find(Needs()) == (["plain", "tools", "long", "eyes"], "")
    assert find(Needs(capabilities=frozenset({TOOLS}))) == (["tools", "long"], "")
    assert find(Needs(capabilities=frozenset({STRUCTURED}))) == ([], "structured")
    assert find(Needs(capabilities=frozenset({TOOLS, VISION}))) == ([], "tools, vision")


def test_length_leaves_out_the_small_ones_while_there_are_others() -> None:
    assert find(Needs(context=5000))[0] == ["long", "eyes"]
    assert find(Needs(capabilities=frozenset({TOOLS}), context=10**6))[0] == ["tools", "long"]


def test_versions_and_labels_select() -> None:
    assert find(Needs(), Target(model="m", version="v1"))[0] == ["plain", "tools"]
    assert find(Needs(), Target(model="m", labels={"zone": "a"}))[0] == ["eyes"]
    assert find(Needs(), Target(model="m", version="v9")) == ([], "m@v9")


def test_no_replicas_lack_nothing() -> None:
    found = suitable(Needs(), Target(model="m", version="v9"), [], FLEET.__getitem__)
    assert (list(found.replicas), found.lacking) == ([], "")
