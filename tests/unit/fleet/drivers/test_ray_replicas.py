"""What a replica on Ray is taken for, and what its place is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.fleet.replicas import ReplicaSpec
from headrace.fleet.drivers.launching import noted
from headrace.fleet.drivers.protocol import InstanceState
from headrace.fleet.drivers.ray.naming import Name, read_name
from headrace.fleet.drivers.ray.replicas import MAKING_SECONDS, Sight, instance_of
from headrace.fleet.drivers.ray.supervisor import Report

NOW = 1_700_000_000.5
NAME = Name(fleet="shop", id="chat-0a1b", revision="abc", started=NOW, version="v1")
FAILED, PENDING = InstanceState.FAILED, InstanceState.PENDING
WORD = st.text(st.sampled_from("abz09-"), min_size=1, max_size=9)


def report(**changes: object) -> Report:
    spec = noted(ReplicaSpec(url="http://pending", id="x", labels={"zone": "a"})).decode()
    values = {
        "url": "http://10.0.0.7:1234", "token": "secret", "spec": spec, "is_alive": True,
        "is_stopping": False, "reason": "", "facts": {},
    }  # fmt: skip
    return Report(**{**values, **changes})  # type: ignore[arg-type]


@given(
    fleet=WORD, pool=WORD, revision=WORD, started=st.integers(0, 2**42),
    version=st.text(st.characters(exclude_categories=["Cs"])),
)  # fmt: skip
def test_a_name_is_read_as_it_was_written(
    fleet: str, pool: str, revision: str, started: int, version: str
) -> None:
    name = Name(
        fleet=fleet, id=f"{pool}-0a1b", revision=revision, started=started / 1000, version=version
    )
    assert read_name(str(name)) == name
    assert name.pool == pool


@given(st.text() | st.lists(st.text(max_size=3), max_size=7).map("/".join))
def test_names_of_others_are_not_ours(text: str) -> None:
    assert read_name(text) is None or text.startswith("headrace/")
    assert read_name("headrace/a/b/c/d/e") is None


@pytest.mark.parametrize(
    ("sight", "age", "state", "words"),
    [
        (Sight(is_placed=False, has_actor=True), 99, PENDING, "no node has room"),
        (Sight(is_placed=True, has_actor=True), 99, PENDING, "its actor starts"),
        (Sight(is_placed=True, has_actor=False), 1, PENDING, "being made"),
        (Sight(is_placed=True, has_actor=False), MAKING_SECONDS, FAILED, "its actor is gone"),
        (Sight(is_placed=True, has_actor=True, death="boom"), 1, FAILED, "boom"),
        (
            Sight(is_placed=True, has_actor=False, report=report()),
            1, FAILED, "its actor is gone",
        ),
        (
            Sight(is_placed=True, has_actor=True, report=report(is_alive=False, reason="why")),
            1, FAILED, "why",
        ),
        (
            Sight(is_placed=True, has_actor=True, report=report(is_stopping=True)),
            1, InstanceState.STOPPING, "",
        ),
        (Sight(is_placed=True, has_actor=True, report=report()), 1, InstanceState.RUNNING, ""),
    ],
)  # fmt: skip
def test_what_is_seen_is_what_it_is(
    sight: Sight, age: float, state: InstanceState, words: str
) -> None:
    instance = instance_of(NAME, sight, NOW + age)
    assert instance is not None
    assert instance.state is state
    assert words in instance.reason
    assert bool(instance.reason) == bool(words)
    has_address = state in (InstanceState.RUNNING, InstanceState.STOPPING)
    assert (instance.spec is not None) == has_address
    assert (instance.id, instance.pool, instance.version) == ("chat-0a1b", "chat", "v1")


def test_one_that_was_told_to_stop_and_has_ended_is_no_more() -> None:
    seen = Sight(is_placed=True, has_actor=True, report=report(is_alive=False, is_stopping=True))
    assert instance_of(NAME, seen, NOW) is None


def test_it_is_called_with_its_own_secret() -> None:
    instance = instance_of(NAME, Sight(is_placed=True, has_actor=True, report=report()), NOW)
    assert instance is not None
    spec = instance.spec
    assert spec is not None
    assert (spec.url, spec.id) == ("http://10.0.0.7:1234", "chat-0a1b")
    assert spec.api_key == spec.peer_token == "secret"
    assert spec.labels == {"zone": "a"}
