"""One pool: states of blocks, and the order in which cached ones are given up."""

import pytest

from headrace.core.errors import IntegrityError
from headrace.engine.memory.block_pool import BlockPool
from headrace.engine.memory.integrity import check
from headrace.engine.memory.prefix_cache import PrefixCache


def test_lru_list_removes_from_the_middle_and_pops_the_oldest():
    cache = PrefixCache(5)
    for block in (3, 1, 4, 0):
        cache.push(block)
    cache.remove(4)
    assert cache.idle_blocks() == [3, 1, 0]
    cache.remove(3)
    cache.push(3)
    assert [cache.pop() for _ in range(3)] == [1, 0, 3]
    assert cache.num_idle == 0
    assert cache.idle_blocks() == []


def test_a_name_belongs_to_the_first_block_that_got_it():
    cache = PrefixCache(2)
    assert cache.name(0, b"a")
    assert not cache.name(1, b"a")
    assert cache.hash_of == [b"a", None]
    assert cache.forget(0) == b"a"
    assert cache.forget(0) is None
    assert cache.block_of == {}


def test_free_blocks_are_taken_before_cached_ones_and_the_oldest_cached_first():
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    for block, name in zip(blocks, (b"a", b"b"), strict=False):
        pool.cache.name(block, name)
    for block in blocks:
        pool.give_back(block)
    assert pool.num_available == 3
    assert pool.take() == blocks[2]
    assert pool.take() == blocks[0]
    assert b"a" not in pool.cache.block_of
    assert b"b" in pool.cache.block_of


def test_a_hit_takes_a_cached_block_out_of_the_eviction_order():
    pool = BlockPool(1)
    block = pool.take()
    pool.cache.name(block, b"a")
    assert not pool.is_writable(block)
    pool.give_back(block)
    pool.share(block)
    assert (pool.num_available, pool.num_held, pool.refs[block]) == (0, 1, 1)
    with pytest.raises(IntegrityError):
        pool.take()


def test_giving_back_too_often_is_an_error():
    pool = BlockPool(1)
    block = pool.take()
    assert pool.give_back(block)
    with pytest.raises(IntegrityError):
        pool.give_back(block)


def test_a_pending_block_becomes_cached_or_free():
    pool = BlockPool(2)
    good, bad = pool.start_load(b"a"), pool.start_load(b"b")
    assert good is not None
    assert bad is not None
    assert pool.start_load(b"c") is None  # no room
    check([pool], [0], [])
    assert len(pool.pending) == 2
    pool.finish_load(good, is_good=True)
    pool.finish_load(bad, is_good=False)
    check([pool], [0], [])
    assert pool.cache.block_of == {b"a": good}
    assert pool.free == [bad]
    assert pool.start_load(b"a") is None  # known


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool.free.append(pool.free[0]),
        lambda pool: pool.free.pop(),
        lambda pool: pool.refs.__setitem__(pool.free[0], 1),
        lambda pool: pool.cache.push(pool.free[0]),
        lambda pool: pool.cache.block_of.__setitem__(b"x", 0),
        lambda pool: setattr(pool, "num_held", 1),
        lambda pool: pool.pending.add(0),
    ],
)
def test_integrity_sees_damage(damage):
    pool = BlockPool(4)
    check([pool], [0], [])
    damage(pool)
    with pytest.raises(IntegrityError):
        check([pool], [0], [])


def test_integrity_sees_promises_that_are_not_covered():
    with pytest.raises(IntegrityError):
        check([BlockPool(1)], [1], [])
