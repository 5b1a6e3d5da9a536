"""What the gateway asks of its prefix index."""

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.prefix.index import PrefixIndex

BODY = {"messages": [{"role": "user", "content": "hello there " * 40}]}


def test_what_was_sent_is_cached_there() -> None:
    index = PrefixIndex(RoutingConfig(block_chars=32))
    prompt = index.read(BODY, model="m", salt="", num_tokens=120)
    assert index.cached(prompt) == {}
    index.note_sent(prompt, "a")
    (tokens,) = index.cached(prompt).values()
    assert 100 < tokens <= 120
    assert index.cached(index.read(BODY, model="m", salt="other", num_tokens=120)) == {}


def test_replicas_that_are_gone_are_forgotten() -> None:
    index = PrefixIndex(RoutingConfig(block_chars=32))
    prompt = index.read(BODY, model="m", salt="", num_tokens=120)
    for name in "abc":
        index.note_sent(prompt, name)
    index.keep({"b", "new"})
    assert set(index.cached(prompt)) == {"b"}
    index.forget("b")
    assert index.num_blocks == 0
