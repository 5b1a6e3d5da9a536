"""What the gateway asks of its prefix index: guesses, and events once they have proved right."""

import logging

import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.prefix.blocks import Prompt
from headrace.fleet.gateway.prefix.index import PrefixIndex
from headrace.fleet.gateway.prefix.kv_wire import Cleared, Stored
from headrace.fleet.gateway.prefix.token_chain import ids
from headrace.fleet.gateway.prefix.trust import Standing

BODY = {"messages": [{"role": "user", "content": "hello there " * 40}]}
TOKENS = ids(range(120))


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.index = PrefixIndex(RoutingConfig(block_chars=32), self.clock)

    def prompt(self, *, salt: str = "", knows_tokens: bool = False) -> Prompt:
        prompt = self.index.read(BODY, model="m", salt=salt, num_tokens=120)
        return self.index.with_tokens(prompt, TOKENS if knows_tokens else None, salt)

    def tell(self, replica_id: str, num_blocks: int = 7) -> None:
        self.index.told.apply(
            replica_id,
            Stored(
                hashes=tuple(range(num_blocks)),
                parent=None,
                token_ids=tuple(range(16 * num_blocks)),
                block_size=16,
                place=("GPU", 0),
            ),
        )

    def serve(self, replica_id: str, *, tells: bool) -> None:
        prompt = self.prompt(knows_tokens=self.index.wants_tokens([replica_id]) is not None)
        self.index.cached(prompt)
        self.index.note_sent(prompt, replica_id)
        if tells:
            self.tell(replica_id)
        self.index.note_answered(prompt, replica_id)
        self.clock.advance(10.0)


def test_what_was_sent_is_cached_there() -> None:
    world = World()
    assert world.index.cached(world.prompt()) == {}
    world.index.note_sent(world.prompt(), "a")
    (tokens,) = world.index.cached(world.prompt()).values()
    assert 100 < tokens <= 120
    assert world.index.cached(world.prompt(salt="other")) == {}


def test_replicas_that_are_gone_are_forgotten() -> None:
    world = World()
    for name in "abc":
        world.index.note_sent(world.prompt(), name)
    world.index.keep({"b", "new"})
    assert set(world.index.cached(world.prompt())) == {"b"}
    world.index.restarted("b")
    assert world.index.num_blocks == 0


def test_events_count_once_they_were_right() -> None:
    world = World()
    world.index.watch("a")
    assert world.index.standing() == {"a": Standing.UNPROVEN}
    assert world.index.wants_tokens(["x", "a"]) == "a"
    world.serve("a", tells=True)
    assert world.index.standing() == {"a": Standing.TRUSTED}
    assert world.index.cached(world.prompt(knows_tokens=True)) == {"a": 112}
    # Events say that all is gone; what was sent long ago no longer counts.
    world.index.told.apply("a", Cleared())
    assert world.index.cached(world.prompt(knows_tokens=True)) == {}
    # Without its tokens a prompt is guessed about.
    assert world.index.cached(world.prompt())["a"] > 100


def test_replicas_take_turns_at_telling_tokens() -> None:
    world = World()
    for name in "abc":
        world.index.watch(name)
    asked = [world.index.wants_tokens("abcd") for _ in range(9)]
    assert sorted(map(str, asked)) == [*"aaabbbccc"]


def test_what_was_just_sent_counts_before_it_is_told() -> None:
    world = World()
    world.index.watch("a")
    world.serve("a", tells=True)
    world.index.standing()
    world.index.told.apply("a", Cleared())
    prompt = world.prompt(knows_tokens=True)
    world.index.note_sent(prompt, "a")
    assert world.index.cached(prompt)["a"] > 100
    world.clock.advance(10.0)
    assert world.index.cached(prompt) == {}


def test_events_that_tell_nothing_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.index.watch("a")
    with caplog.at_level(logging.INFO, "headrace.fleet"):
        for _ in range(3):
            world.serve("a", tells=False)
        assert world.index.standing() == {"a": Standing.FAILED}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert world.index.wants_tokens(["a"]) is None
    assert world.index.cached(world.prompt(knows_tokens=True))["a"] > 100
    # A minute later they are given another chance.
    world.clock.advance(61.0)
    assert world.index.wants_tokens(["a"]) == "a"
    world.serve("a", tells=True)
    assert world.index.standing() == {"a": Standing.TRUSTED}


def test_one_wrong_check_is_forgiven() -> None:
    world = World()
    world.index.watch("a")
    world.serve("a", tells=True)
    world.index.standing()
    world.clock.advance(60.0)
    world.index.told.apply("a", Cleared())
    world.serve("a", tells=False)
    assert world.index.standing() == {"a": Standing.TRUSTED}


def test_short_prompts_prove_nothing() -> None:
    world = World()
    world.index.watch("a")
    prompt = world.index.read({"prompt": "hi"}, model="m", salt="", num_tokens=1)
    prompt = world.index.with_tokens(prompt, ids([1, 2]), "")
    for _ in range(5):
        world.index.note_answered(prompt, "a")
        world.clock.advance(100.0)
    assert world.index.standing() == {"a": Standing.UNPROVEN}


def test_a_replica_that_publishes_no_more_is_guessed_about() -> None:
    world = World()
    world.index.watch("a")
    world.serve("a", tells=True)
    world.index.unwatch("a")
    assert world.index.standing() == {}
    assert world.index.wants_tokens(["a"]) is None
    assert world.index.told.num_blocks == 0
    assert world.index.cached(world.prompt())["a"] > 100
