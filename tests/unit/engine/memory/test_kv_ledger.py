"""The ledger's contract, one sentence a test. Random use is in tests/property/test_ledger_machine.py."""

import msgspec
import pytest

from headrace.core.errors import IntegrityError
from headrace.core.step import BlockCopy
from headrace.engine.memory.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventLog,
)
from headrace.engine.memory.hashing import RootKey
from headrace.engine.memory.ledger import KVLedger

KEY = RootKey(weights_digest=b"w", model_digest=b"m", kv_format="f16")


def make(num_blocks=(8,), windows=(0,), **options):
    return KVLedger(num_blocks, 4, windows, key=KEY, **options)


def start(ledger, tokens, salt=b""):
    chain = ledger.chain(None, salt)
    match = ledger.match(chain, tokens)
    assert ledger.can_reserve(match, len(tokens))
    return ledger.open(match, chain, len(tokens))


def compute(ledger, blocks, tokens):
    assert ledger.reserve(blocks, blocks.num_committed, len(tokens))
    ledger.commit(blocks, len(tokens), tokens)


def test_a_second_prompt_shares_full_blocks_and_recomputes_its_last_token():
    ledger = make()
    first = start(ledger, list(range(8)))
    compute(ledger, first, list(range(8)))
    second = start(ledger, list(range(8)))
    assert second.num_cached == 4  # the block of the last token is computed again
    third = start(ledger, list(range(9)))
    assert third.num_cached == 8
    assert third.tables[0] == first.tables[0]
    assert start(ledger, list(range(9)), salt=b"other").num_cached == 0
    usage = ledger.usage()
    assert (usage.hit_tokens, usage.queried_tokens) == (12, 34)


def test_only_committed_full_blocks_can_be_hit():
    ledger = make()
    tokens = list(range(9))
    blocks = start(ledger, tokens)
    ledger.reserve(blocks, 0, 9)
    assert start(ledger, tokens).num_cached == 0
    ledger.commit(blocks, 7, tokens)
    assert start(ledger, tokens).num_cached == 4


def test_without_the_prefix_cache_nothing_is_named():
    ledger = make(prefix_cache=False)
    blocks = start(ledger, list(range(8)))
    compute(ledger, blocks, list(range(8)))
    ledger.release(blocks)
    assert start(ledger, list(range(9))).num_cached == 0
    assert ledger.usage().cached == 0


def test_tails_are_evicted_first():
    ledger = make((4,))
    tokens = list(range(16))
    blocks = start(ledger, tokens)
    compute(ledger, blocks, tokens)
    ledger.release(blocks)
    other = start(ledger, [99] * 8)
    compute(ledger, other, [99] * 8)
    # Two of four blocks went to the other prompt: the beginning is still there.
    assert ledger.match(ledger.chain(None, b""), tokens).num_blocks == 2


def test_a_promised_prompt_can_be_finished_whatever_others_want():
    ledger = make((6,))
    greedy = start(ledger, [1])
    compute(ledger, greedy, [1])
    promised = start(ledger, [2] * 16)  # 4 of the 5 blocks left
    assert ledger.reserve(greedy, 1, 24) == 7  # the one block that nobody was promised
    assert ledger.reserve(greedy, 8, 9) == 0
    assert not ledger.can_reserve(ledger.match(None, [3]), 1)
    assert ledger.reserve(promised, 0, 16) == 16
    ledger.check_integrity()
    ledger.release(promised)
    assert ledger.reserve(greedy, 8, 24) == 16


def test_the_margin_stays_free():
    ledger = make((4,))
    match = ledger.match(None, [1] * 12)
    assert ledger.can_reserve(match, 12, margin=1)
    assert not ledger.can_reserve(match, 12, margin=2)


def test_a_hit_on_idle_blocks_takes_capacity():
    ledger = make((4,))
    blocks = start(ledger, list(range(8)))
    compute(ledger, blocks, list(range(8)))
    ledger.release(blocks)
    chain = ledger.chain(None, b"")
    tokens = [*range(8), *range(8)]
    assert ledger.can_reserve(ledger.match(chain, tokens), 16)
    assert not ledger.can_reserve(ledger.match(chain, tokens), 17)


def test_fork_shares_every_block_and_copies_the_one_that_is_written():
    ledger = make()
    tokens = list(range(6))
    parent = start(ledger, tokens)
    compute(ledger, parent, tokens)
    child = ledger.fork(parent, 6)
    assert child is not None
    assert child.tables == parent.tables
    assert (child.num_cached, ledger.usage().held) == (5, 2)
    assert ledger.reserve(child, 5, 6) == 1
    source, target = parent.tables[0][1], child.tables[0][1]
    assert ledger.take_copies() == [BlockCopy(0, source, target)]
    assert child.tables[0][0] == parent.tables[0][0]
    assert child.take_writes() == [(0, 0, [parent.tables[0][0], source]), (0, 1, [target])]
    assert ledger.reserve(parent, 6, 7) == 1
    assert ledger.take_copies() == []  # the parent is alone on its block again
    ledger.check_integrity()


def test_the_source_goes_on_in_place_where_no_fork_reads():
    ledger = make((2,))
    parent = start(ledger, [1, 2, 3])
    compute(ledger, parent, [1, 2])
    child = ledger.fork(parent, 2)
    assert child is not None
    assert ledger.reserve(parent, 2, 3) == 1  # its prompt was promised; it needs no block for it
    assert ledger.take_copies() == []
    assert ledger.reserve(child, 1, 2) == 1
    assert ledger.take_copies() == [BlockCopy(0, parent.tables[0][0], child.tables[0][0])]


def test_a_published_block_is_never_written():
    ledger = make()
    tokens = list(range(8))
    parent = start(ledger, tokens)
    compute(ledger, parent, tokens)
    child = ledger.fork(parent, 8)
    assert child is not None
    published = child.tables[0][1]
    ledger.release(parent)
    assert ledger.reserve(child, 7, 8) == 1
    assert child.tables[0][1] != published
    assert ledger.take_copies() == [BlockCopy(0, published, child.tables[0][1])]


def test_fork_is_refused_when_there_is_no_room_or_the_source_is_not_there_yet():
    ledger = make((2,))
    parent = start(ledger, [1] * 5)
    assert ledger.fork(parent, 5) is None  # nothing committed
    compute(ledger, parent, [1] * 5)
    assert ledger.fork(parent, 5) is None  # no block for the copy
    assert ledger.usage().held == 2


def test_windowed_groups_give_blocks_back_and_hits_need_the_window_only():
    ledger = make((20, 20), (0, 6), max_uncommitted_tokens=8)
    tokens = list(range(16))
    blocks = start(ledger, tokens)
    compute(ledger, blocks, tokens)
    # The query at 16 reads keys 11..16: blocks 0 and 1 are behind the window.
    assert blocks.tables[1][:2] == [-1, -1]
    assert blocks.tables[0].count(-1) == 0
    assert (1, 0, [-1, -1]) in blocks.take_writes()
    again = start(ledger, [*tokens, 1])
    assert again.num_cached == 16
    assert again.tables[1] == [-1, -1, *blocks.tables[1][2:]]
    ledger.check_integrity()


def test_a_windowed_prompt_is_promised_its_peak_only():
    ledger = make((5,), (4,), max_uncommitted_tokens=8)
    tokens = list(range(100))
    blocks = start(ledger, tokens)  # 25 blocks would never fit
    done = 0
    while done < len(tokens):
        granted = ledger.reserve(blocks, done, min(done + 8, len(tokens)))
        assert granted
        done += granted
        ledger.commit(blocks, done, tokens)
        ledger.check_integrity()
    assert ledger.max_sequence_tokens > 10**9
    assert make((5,), (4,)).max_sequence_tokens == 20  # rows without bound need all at once
    assert make((1,), (4,), max_uncommitted_tokens=8).max_sequence_tokens == 4


def test_truncate_gives_back_what_drafts_took_and_keeps_what_is_committed():
    ledger = make()
    blocks = start(ledger, [1, 2, 3])
    compute(ledger, blocks, [1, 2, 3])
    assert ledger.reserve(blocks, 3, 12) == 9
    ledger.truncate(blocks, 5)
    assert len(blocks.tables[0]) == 2
    assert ledger.reserve(blocks, 5, 8) == 3
    with pytest.raises(IntegrityError):
        ledger.truncate(blocks, 2)


def test_a_sequence_that_dropped_a_block_publishes_nothing_more():
    ledger = make(record_events=True)
    tokens = list(range(12))
    blocks = start(ledger, tokens)
    ledger.reserve(blocks, 0, 12)
    ledger.commit(blocks, 8, tokens)
    ledger.drop(blocks, 1, 2)
    ledger.commit(blocks, 12, tokens)
    assert blocks.tables[0][1] == -1
    assert ledger.fork(blocks, 12) is None
    stored = [e for e in ledger.take_events() if isinstance(e, BlockStored)]
    assert [len(event.block_hashes) for event in stored] == [2]


def test_a_sequence_in_doubt_takes_all_its_names_with_it():
    ledger = make((16,), record_events=True)
    tokens = list(range(12))
    first = start(ledger, tokens)
    compute(ledger, first, tokens[:8])
    ledger.release(first)  # idle blocks, with names
    other = start(ledger, [50] * 8)
    compute(ledger, other, [50] * 8)
    (_, kept) = ledger.take_events()
    second = start(ledger, tokens)
    same = start(ledger, tokens)
    assert (second.num_cached, same.num_cached) == (8, 8)
    compute(ledger, second, tokens)
    names = list(second.chain.hashes)
    ledger.withdraw(second)
    ledger.release(second)
    ledger.check_integrity()
    assert start(ledger, tokens).num_cached == 0
    assert start(ledger, [50] * 9).num_cached == 8
    assert kept.block_hashes == other.chain.hashes
    _, removed = ledger.take_events()
    assert removed == BlockRemoved(names)
    compute(ledger, same, tokens)  # it runs on what is in doubt
    assert ledger.take_events() == []
    assert start(ledger, [*tokens, 1]).num_cached == 0
    ledger.release(same)
    ledger.check_integrity()


def test_withdrawing_reaches_idle_and_loading_blocks():
    ledger = make((8, 8), (0, 4))
    tokens = list(range(12))
    blocks = start(ledger, tokens)
    compute(ledger, blocks, tokens)  # the windowed group gave its first block back: it is idle
    assert blocks.tables[1][0] == -1
    ledger.withdraw(blocks)
    assert ledger.usage().cached == 0
    ledger.check_integrity()
    load = ledger.start_load(0, blocks.chain.hashes[0])
    ledger.withdraw(blocks)
    ledger.finish_load(0, load, is_good=True)
    assert ledger.usage().cached == 0
    ledger.check_integrity()


def test_releasing_twice_is_an_error():
    ledger = make()
    blocks = start(ledger, [1])
    ledger.release(blocks)
    with pytest.raises(IntegrityError):
        ledger.release(blocks)


def test_a_block_that_is_being_loaded_is_a_reason_to_wait():
    ledger = make()
    chain = ledger.chain(None, b"")
    tokens = list(range(9))
    chain.extend(tokens, 2)
    block = ledger.start_load(0, chain.hashes[0])
    match = ledger.match(chain, tokens)
    assert match.is_pending
    assert match.num_blocks == 0
    ledger.finish_load(0, block, is_good=True)
    match = ledger.match(chain, tokens)
    assert not match.is_pending
    assert match.num_blocks == 1


def test_clearing_the_cache_forgets_running_and_loading_blocks_too():
    ledger = make(record_events=True)
    blocks = start(ledger, list(range(8)))
    compute(ledger, blocks, list(range(8)))
    chain = ledger.chain(None, b"x")
    chain.extend([1] * 4, 1)
    load = ledger.start_load(0, chain.hashes[0])
    ledger.clear_cache()
    ledger.finish_load(0, load, is_good=True)
    ledger.check_integrity()
    assert start(ledger, list(range(9))).num_cached == 0
    compute(ledger, blocks, list(range(12)))
    assert ledger.take_events() == [AllBlocksCleared()]


def test_events_chain_and_report_evictions():
    ledger = make((3,), record_events=True)
    tokens = list(range(10))
    blocks = start(ledger, tokens)
    compute(ledger, blocks, tokens[:8])
    (stored,) = ledger.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.parent_block_hash is None
    assert (stored.token_ids, stored.block_size) == (tokens[:8], 4)
    compute(ledger, blocks, [*tokens, 1, 2])
    (more,) = ledger.take_events()
    assert more.parent_block_hash == stored.block_hashes[-1]
    ledger.release(blocks)
    compute(ledger, start(ledger, [7] * 8), [7] * 8)
    removed, _ = ledger.take_events()
    assert removed == BlockRemoved([more.block_hashes[0], stored.block_hashes[1]])
    assert ledger.take_events() == []


def test_events_tell_salt_and_adapter_which_hashes_hide():
    ledger = make((4,), record_events=True)
    tokens = list(range(10))
    chain = ledger.chain("adapter", b"salt")
    blocks = ledger.open(ledger.match(chain, tokens), chain, len(tokens))
    compute(ledger, blocks, tokens)
    (stored,) = ledger.take_events()
    assert stored.lora_name == "adapter"
    assert stored.extra_keys == [["salt"], None]


def test_events_encode_as_tagged_arrays():
    event = BlockStored([b"h"], None, [1, 2], 2)
    assert msgspec.to_builtins(event, builtin_types=(bytes,)) == [
        "BlockStored", [b"h"], None, [1, 2], 2, None, None, None, None,
    ]  # fmt: skip
    assert msgspec.to_builtins(AllBlocksCleared()) == ["AllBlocksCleared"]


def test_a_log_that_nobody_reads_stays_bounded_and_never_claims_too_much():
    log = KVEventLog(limit=4)
    for number in range(20):
        log.stored([bytes([number])], None, [number], 1)
        log.removed(bytes([number]))
    events = log.take()
    assert len(events) <= 5
    assert AllBlocksCleared() in events


@pytest.mark.parametrize("arguments", [((), ()), ((1,), (0, 0)), ((0,), (0,)), ((4,), (-1,))])
def test_impossible_shapes_are_refused(arguments):
    with pytest.raises(ValueError, match=r"KV group|positive"):
        KVLedger(arguments[0], 4, arguments[1], key=KEY)
