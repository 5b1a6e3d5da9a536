"""The exact index, fed by the events of a real block ledger: it says what the ledger would find."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.kv_events import encode_event
from headrace.engine.memory.hashing import RootKey
from headrace.engine.memory.ledger import KVLedger
from headrace.fleet.gateway.prefix.exact import ExactIndex
from headrace.fleet.gateway.prefix.kv_wire import decode_batch
from headrace.fleet.gateway.prefix.token_chain import TokenPrompt, ids

SIZE = 4
KEY = RootKey(weights_digest=b"w", model_digest=b"m", kv_format="f16")

# Few tokens and few prefixes, so that prompts meet.
PROMPT = st.lists(
    st.sampled_from([[1] * SIZE, [2] * SIZE, [3, 4] * 2]), min_size=1, max_size=5
).map(lambda blocks: [token for block in blocks for token in block] + [9])
REQUEST = st.tuples(PROMPT, st.sampled_from([None, "lora"]), st.sampled_from(["", "tenant"]))


class World:
    """A ledger and an index that hears of it over the wire."""

    def __init__(self, num_blocks: int, *, as_maps: bool) -> None:
        self.ledger = KVLedger((num_blocks,), SIZE, (0,), key=KEY, record_events=True)
        self.index = ExactIndex(1000)
        self.as_maps = as_maps
        self.is_deaf = False

    def serve(self, tokens: list[int], adapter: str | None, salt: str) -> None:
        chain = self.ledger.chain(adapter, salt.encode())
        match = self.ledger.match(chain, tokens)
        if not self.ledger.can_reserve(match, len(tokens)):
            return
        blocks = self.ledger.open(match, chain, len(tokens))
        assert self.ledger.reserve(blocks, blocks.num_committed, len(tokens))
        self.ledger.commit(blocks, len(tokens), tokens)
        self.ledger.release(blocks)
        self.tell()

    def tell(self) -> None:
        if self.is_deaf:
            self.ledger.take_events()
            self.index.purge("r")
        events = [encode_event(event, as_maps=self.as_maps) for event in self.ledger.take_events()]
        for event in decode_batch(msgspec.msgpack.encode([1.0, events, 0])):
            self.index.apply("r", event)

    def ledger_finds(self, tokens: list[int], adapter: str | None, salt: str) -> int:
        return (
            self.ledger.match(self.ledger.chain(adapter, salt.encode()), tokens).num_blocks * SIZE
        )

    def index_finds(self, tokens: list[int], adapter: str | None, salt: str) -> int:
        return self.index.cached("r", TokenPrompt(ids(tokens), salt=salt), adapter or "base")


@settings(max_examples=60)
@given(st.lists(REQUEST, max_size=25), st.integers(6, 12), st.booleans())
def test_it_says_what_the_ledger_would_find(
    requests: list[Any], num_blocks: int, as_maps: bool
) -> None:
    world = World(num_blocks, as_maps=as_maps)
    world.serve([7] * 9, "lora", "")
    for request in requests:
        world.serve(*request)
        for asked in requests:
            assert world.index_finds(*asked) == world.ledger_finds(*asked)
    assert world.index.num_blocks <= num_blocks


@given(st.lists(REQUEST, max_size=25), st.data())
def test_lost_messages_make_it_know_less_never_more(
    requests: list[Any], data: st.DataObject
) -> None:
    world = World(8, as_maps=False)
    world.serve([7] * 9, "lora", "")
    for request in requests:
        world.is_deaf = data.draw(st.booleans())
        world.serve(*request)
        for asked in requests:
            assert world.index_finds(*asked) <= world.ledger_finds(*asked)
