from tests.support.engine_run import KEY

from headrace.core.step import BlockLanding
from headrace.engine.memory.events import BlockStored
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.memory.loads import MAX_LOAD_SECONDS, BlockLoads

TOKENS = list(range(14))


class Tier:
    """Has the blocks of some groups, by the first letter of nothing: a set of (group, hash)."""

    def __init__(self):
        self.found = set()

    def holds(self, group, key):
        return (group, key) in self.found


def setting(windows=(0,), num_blocks=(8,), lengths=(3,)):
    """A ledger over a tier that has the first `lengths[g]` blocks of TOKENS in group g."""
    ledger = KVLedger(num_blocks, 4, windows, key=KEY, record_events=True, has_tier=True)
    chain = ledger.chain(None, b"")
    chain.extend(TOKENS, 3)
    tier = Tier()
    for group, length in enumerate(lengths):
        tier.found |= {(group, key) for key in chain.hashes[:length]}
    return ledger, chain, BlockLoads(ledger, tier)


def begin(ledger, chain, loads, now=0.0):
    return loads.begin(chain, ledger.match(chain, TOKENS), TOKENS, now)


def landing(transfer, is_good=True):
    return BlockLanding(transfer.group, transfer.block, transfer.key, is_good)


def test_a_prefix_in_the_tier_is_pending_then_cached_under_its_hashes():
    ledger, chain, loads = setting()
    assert begin(ledger, chain, loads)
    assert ledger.usage().pending == 3
    assert ledger.match(chain, TOKENS).is_pending
    transfers = loads.take()
    assert [t.key for t in transfers] == chain.hashes
    assert loads.take() == ()
    loads.land([landing(t) for t in transfers])
    match = ledger.match(chain, TOKENS)
    assert (match.num_blocks, match.is_pending, loads.is_loading) == (3, False, False)
    stored = [event for event in ledger.take_events() if isinstance(event, BlockStored)]
    assert [e.token_ids for e in stored] == [TOKENS[:4], TOKENS[4:8], TOKENS[8:12]]
    assert [e.parent_block_hash for e in stored] == [None, *chain.hashes[:2]]
    assert ledger.take_stores() == ()  # they come from there
    ledger.check_integrity()


def test_a_failed_load_leaves_the_shorter_prefix():
    ledger, chain, loads = setting()
    begin(ledger, chain, loads)
    first, second, third = loads.take()
    loads.land([landing(third), landing(second, is_good=False), landing(first)])
    assert ledger.match(chain, TOKENS).num_blocks == 1
    assert ledger.usage().cached == 2
    ledger.check_integrity()


def test_nothing_is_loaded_that_leads_to_no_hit():
    ledger, chain, loads = setting(lengths=(0,))
    loads._tier.found = {(0, chain.hashes[1])}  # without the block before it
    assert not begin(ledger, chain, loads)
    assert ledger.usage().pending == 0


def test_a_window_needs_its_last_blocks_only():
    ledger, chain, loads = setting(windows=(0, 5), num_blocks=(8, 8), lengths=(3, 0))
    loads._tier.found |= {(1, chain.hashes[1]), (1, chain.hashes[2])}
    assert begin(ledger, chain, loads)
    assert [(t.group, t.key) for t in loads.take()] == [
        (0, chain.hashes[0]),
        (0, chain.hashes[1]),
        (0, chain.hashes[2]),
        (1, chain.hashes[2]),
    ]


def test_loads_stop_where_memory_does_and_spare_what_they_follow():
    ledger, chain, loads = setting(num_blocks=(3,))
    blocks = ledger.open(ledger.match(chain, TOKENS[:5]), chain, 5)
    ledger.reserve(blocks, 0, 5)
    ledger.commit(blocks, 5, TOKENS[:5])
    ledger.release(blocks)
    loads._tier.found = {(0, key) for key in chain.hashes[1:]}
    assert begin(ledger, chain, loads)
    assert [t.key for t in loads.take()] == chain.hashes[1:]
    assert ledger.match(chain, TOKENS[:5]).num_blocks == 1
    ledger.check_integrity()


def test_what_was_lost_with_its_plan_is_sent_again():
    ledger, chain, loads = setting()
    begin(ledger, chain, loads)
    transfers = loads.take()
    loads.land([landing(transfers[0])])
    loads.resend()
    assert loads.has_unsent
    assert loads.take() == transfers[1:]


def test_a_load_that_takes_too_long_is_given_up_and_its_block_comes_back():
    ledger, chain, loads = setting()
    begin(ledger, chain, loads, now=1.0)
    transfers = loads.take()
    looked = ledger.num_landed
    loads.expire(1.0 + MAX_LOAD_SECONDS)
    assert loads.is_loading
    loads.expire(1.1 + MAX_LOAD_SECONDS)
    assert not loads.is_loading
    assert ledger.num_landed > looked
    assert not ledger.match(chain, TOKENS).is_pending
    assert ledger.usage().pending == 3
    loads.land([landing(t) for t in transfers])
    assert (ledger.usage().pending, ledger.usage().cached) == (0, 0)
    ledger.check_integrity()


def test_landings_that_nobody_asked_for_are_ignored():
    ledger, chain, loads = setting()
    begin(ledger, chain, loads)
    (first, *_) = loads.take()
    loads.land([BlockLanding(0, first.block, b"another", True), BlockLanding(0, 99, b"x", True)])
    assert ledger.usage().pending == 3


def test_published_blocks_are_stored_unless_they_are_gone_by_then():
    ledger, chain, _ = setting(num_blocks=(3,), lengths=(0,))
    blocks = ledger.open(ledger.match(chain, TOKENS[:9]), chain, 9)
    ledger.reserve(blocks, 0, 9)
    ledger.commit(blocks, 9, TOKENS[:9])
    ledger.release(blocks)
    other = ledger.chain(None, b"other")
    blocks = ledger.open(ledger.match(other, TOKENS[:7]), other, 7)
    ledger.reserve(blocks, 0, 7)  # takes the free block and evicts the end of the first prompt
    assert [store.key for store in ledger.take_stores()] == chain.hashes[:1]
    assert not ledger.has_stores
