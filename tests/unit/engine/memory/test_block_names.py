"""Names of blocks: equal exactly when everything that decides the content is equal."""

from msgspec.structs import replace

from headrace.engine.memory.hashing import HashChain, MediaSpan, RootKey, block_hash, root_hash

KEY = RootKey(weights_digest=b"weights", model_digest=b"model", kv_format="f16")


def root(key=KEY, size=16, adapter=None, salt=b""):
    return root_hash(key, size, adapter, salt)


def test_every_field_of_the_root_makes_another_name():
    roots = {
        root(),
        root(replace(KEY, weights_digest=b"weights2")),
        root(replace(KEY, model_digest=b"model2")),
        root(replace(KEY, kv_format="bf16")),
        root(size=32),
        root(adapter="a"),
        root(adapter=""),
        root(salt=b"a"),
        # Bytes that move from one field to the next are not the same name.
        root(replace(KEY, weights_digest=b"weightsm", model_digest=b"odel")),
        root(replace(KEY, model_digest=b"modelf", kv_format="16")),
        root(adapter="ab", salt=b"c"),
        root(adapter="a", salt=b"bc"),
    }
    assert len(roots) == 12


def test_block_depends_on_parent_tokens_and_media():
    names = {
        block_hash(b"p", [1, 2]),
        block_hash(b"q", [1, 2]),
        block_hash(b"p", [1, 3]),
        block_hash(b"p", [1, 2, 0]),
        block_hash(b"p", [1, 2], [(0, b"m")]),
        block_hash(b"p", [1, 2], [(1, b"m")]),
        block_hash(b"p", [1, 2], [(-1, b"m")]),
        block_hash(b"p", [1, 2], [(0, b"m"), (1, b"m")]),
    }
    assert len(names) == 8
    assert block_hash(b"p", [1, 2]) == block_hash(b"p", (1, 2))


def test_chain_names_full_blocks_once_and_a_fork_goes_its_own_way():
    chain = HashChain(b"root", 2)
    chain.extend([1, 2, 3, 4, 5], 2)
    first = list(chain.hashes)
    chain.extend([1, 2, 3, 4, 5, 6], 3)
    assert chain.hashes[:2] == first
    assert chain.hashes[1] == block_hash(first[0], [3, 4])
    fork = chain.fork(1)
    fork.extend([1, 2, 9, 9], 2)
    assert fork.hashes[0] == first[0]
    assert fork.hashes[1] != first[1]
    assert len(chain.hashes) == 3


def test_media_names_only_the_blocks_that_it_touches():
    plain, media = HashChain(b"r", 4), HashChain(b"r", 4, (MediaSpan(5, 6, b"image"),))
    other = HashChain(b"r", 4, (MediaSpan(5, 6, b"other"),))
    for chain in (plain, media, other):
        chain.extend(list(range(16)), 4)
    assert media.hashes[0] == plain.hashes[0]
    assert len({plain.hashes[1], media.hashes[1], other.hashes[1]}) == 3
    # The last block has no media itself, but its parents differ.
    assert media.hashes[3] != plain.hashes[3]
    assert media.hashes[3] == block_hash(media.hashes[2], [12, 13, 14, 15])
