"""The ledger under random use, with block contents simulated: every table reads its own prefix."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.memory.block_table import GIVEN_BACK, SequenceBlocks
from headrace.engine.memory.events import AllBlocksCleared, BlockRemoved, BlockStored
from headrace.engine.memory.eviction import num_kept
from headrace.engine.memory.hashing import HashChain, RootKey
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.memory.matching import first_needed

SIZE = 4
KEY = RootKey(weights_digest=b"w", model_digest=b"m", kv_format="f16")
#: Few tokens and few salts, so that prefixes meet often.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=30)
SALTS = st.sampled_from([b"", b"tenant"])


@dataclass
class Model:
    """One sequence as the test knows it."""

    salt: bytes
    tokens: list[int]
    chain: HashChain | None
    blocks: SequenceBlocks
    computed: int
    seen: list[dict[int, int]] = field(default_factory=list)
    """Per group: the block table as the executor knows it, from block writes alone."""
    has_dropped: bool = False

    def tag(self, position: int) -> tuple[bytes, tuple[int, ...]]:
        """What must lie at a position: all that led to it."""
        return self.salt, tuple(self.tokens[: position + 1])


class LedgerMachine(RuleBasedStateMachine):
    """Opens, grows, truncates, forks, drops, loads and releases sequences in tiny pools."""

    @initialize(
        shape=st.sampled_from(
            [((12,), (0,)), ((14, 9), (0, 6)), ((10,), (7,)), ((11, 11), (5, 0))]
        ),
        prefix_cache=st.sampled_from([True, True, True, False]),
        max_row=st.sampled_from([0, 5, 12]),
    )
    def build(self, shape, prefix_cache, max_row):
        num_blocks, self.windows = shape
        self.max_row = max_row or 30
        self.ledger = KVLedger(
            num_blocks,
            SIZE,
            self.windows,
            key=KEY,
            prefix_cache=prefix_cache,
            max_uncommitted_tokens=max_row,
            record_events=True,
        )
        self.kv = [{} for _ in self.windows]
        self.models: list[Model] = []
        self.names: dict[bytes, tuple[bytes, list[int]]] = {}
        self.loads: list[tuple[int, int, bytes]] = []
        self.known: set[bytes] = set()

    # ---- rules ---------------------------------------------------------------------------------

    @rule(prompt=PROMPTS, salt=SALTS, margin=st.integers(0, 2))
    def open(self, prompt, salt, margin):
        if len(prompt) > self.ledger.max_sequence_tokens:
            return
        chain = self.ledger.chain(None, salt)
        match = self.ledger.match(chain, prompt)
        assert match.num_blocks * SIZE < len(prompt), "the last token is recomputed"
        if not self.ledger.can_reserve(match, len(prompt), margin):
            return
        blocks = self.ledger.open(match, chain, len(prompt))
        self._enter(Model(salt, list(prompt), chain, blocks, blocks.num_cached))

    @precondition(lambda self: self.models)
    @rule(data=st.data(), more=st.integers(1, 6))
    def step(self, data, more):
        """Compute up to `more` positions of one sequence, as a row would."""
        model = data.draw(st.sampled_from(self.models))
        if model.computed == len(model.tokens):
            model.tokens += [data.draw(st.integers(0, 1)) for _ in range(more)]
        granted = self._write(model, min(more, self.max_row, len(model.tokens) - model.computed))
        if not granted:  # alone, a sequence can always grow to the limit that it was told
            is_alone = len(self.models) == 1 and not self.loads
            assert not is_alone or model.computed >= self.ledger.max_sequence_tokens
        self._commit(model, model.computed + granted)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), num_draft=st.integers(1, 6))
    def speculate(self, data, num_draft):
        """Write guesses, keep some, forget the rest."""
        model = data.draw(st.sampled_from(self.models))
        if model.computed < len(model.tokens) - 1:
            return  # its prompt is not computed yet
        kept = data.draw(st.integers(0, num_draft))
        start = model.computed
        guesses = [data.draw(st.integers(0, 1)) for _ in range(num_draft)]
        if len(model.tokens) == start:
            model.tokens.append(0)
        model.tokens += guesses
        granted = self._write(model, min(1 + num_draft, self.max_row))
        if granted == 0:
            return
        committed = start + min(granted, 1 + kept)
        self._commit(model, committed)
        self.ledger.truncate(model.blocks, committed)
        model.tokens[committed:] = [data.draw(st.integers(0, 1))]

    @precondition(lambda self: self.models)
    @rule(data=st.data(), margin=st.integers(0, 1))
    def fork(self, data, margin):
        model = data.draw(st.sampled_from(self.models))
        if model.computed == 0:
            return
        count = data.draw(st.integers(1, model.computed))
        blocks = self.ledger.fork(model.blocks, count, margin)
        if blocks is not None:
            tokens = [*model.tokens[:count], data.draw(st.integers(0, 1))]
            self._enter(Model(model.salt, tokens, blocks.chain, blocks, blocks.num_cached))
            assert blocks.num_cached == count - 1

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def release(self, data):
        model = data.draw(st.sampled_from(self.models))
        self.models.remove(model)
        self.ledger.release(model.blocks)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def fail(self, data):
        """A sequence ends because what it read was not finite."""
        model = data.draw(st.sampled_from(self.models))
        self.models.remove(model)
        self.ledger.withdraw(model.blocks)
        self.ledger.release(model.blocks)
        if model.chain is not None:
            match = self.ledger.match(self.ledger.chain(None, model.salt), [*model.tokens, 0])
            assert match.num_blocks == 0 or not model.blocks.num_published

    @precondition(lambda self: self.models)
    @rule(data=st.data(), first=st.integers(0, 2), count=st.integers(1, 3))
    def drop(self, data, first, count):
        """A KV policy gives up old blocks."""
        model = data.draw(st.sampled_from(self.models))
        last = min(first + count, model.computed // SIZE)
        if last > first:
            self.ledger.drop(model.blocks, first, last)
            model.has_dropped = True
            self._see(model)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), num_tokens=st.integers(1, 12), num_sinks=st.integers(0, 4))
    def evict(self, data, num_tokens, num_sinks):
        """A KV policy gives up what matters least, out of the group that sees all."""
        model = data.draw(st.sampled_from(self.models))
        count = len(model.blocks.tables[0])
        mass = data.draw(st.lists(st.floats(0, 9), min_size=count, max_size=count))
        self.ledger.evict(model.blocks, mass, num_tokens, num_sinks)
        if 0 in self.windows:
            table = model.blocks.tables[self.windows.index(0)][: model.computed // SIZE]
            left = len(table) - table.count(GIVEN_BACK)
            assert left <= num_kept(num_tokens, num_sinks, SIZE)
            model.has_dropped = model.has_dropped or GIVEN_BACK in table
        self._see(model)

    @rule(salt=SALTS, prompt=st.lists(st.integers(0, 1), min_size=SIZE, max_size=SIZE * 4))
    def load(self, salt, prompt):
        """The tier below begins to load the last full block of a prompt."""
        chain = self.ledger.chain(None, salt)
        if chain is None:
            return
        chain.extend(prompt, len(prompt) // SIZE)
        self._note(salt, prompt, chain)
        for group in range(len(self.windows)):
            block = self.ledger.start_load(group, chain.hashes[-1])
            if block is not None:
                self.loads.append((group, block, chain.hashes[-1]))

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), is_good=st.booleans())
    def land(self, data, is_good):
        load = data.draw(st.sampled_from(self.loads))
        self.loads.remove(load)
        group, block, name = load
        salt, tokens = self.names[name]
        if is_good:
            for offset in range(SIZE):
                end = len(tokens) - SIZE + offset + 1
                self.kv[group][block * SIZE + offset] = (salt, tuple(tokens[:end]))
        self.ledger.finish_load(group, block, is_good=is_good)

    @precondition(lambda self: len(self.models) > 2)
    @rule()
    def clear(self):
        self.ledger.clear_cache()

    # ---- invariants ----------------------------------------------------------------------------

    @invariant()
    def adds_up(self):
        self.ledger.check_integrity()

    @invariant()
    def reads_its_own_prefix(self):
        for model in self.models:
            for group, window in enumerate(self.windows):
                table = model.blocks.tables[group]
                first = first_needed(model.computed, window, SIZE)
                for position in range(first * SIZE, model.computed):
                    block = table[position // SIZE]
                    if block == GIVEN_BACK:
                        assert model.has_dropped
                    else:
                        assert self.kv[group][block * SIZE + position % SIZE] == model.tag(position)

    @invariant()
    def executor_knows_the_tables(self):
        for model in self.models:
            self._see(model)
            for group, table in enumerate(model.blocks.tables):
                assert [model.seen[group].get(i) for i in range(len(table))] == table

    @invariant()
    def names_tell_the_truth(self):
        for group, pool in enumerate(self.ledger._pools):
            for name, block in pool.cache.block_of.items():
                if block in pool.pending:
                    continue
                salt, tokens = self.names[name]
                for offset in range(SIZE):
                    tag = (salt, tuple(tokens[: len(tokens) - SIZE + offset + 1]))
                    assert self.kv[group][block * SIZE + offset] == tag

    @invariant()
    def no_block_is_written_by_two(self):
        """A block that somebody will write next has one owner."""
        for group in range(len(self.windows)):
            owned = [m.blocks.tables[group][m.computed // SIZE :] for m in self.models]
            fresh = [
                b
                for m, t in zip(self.models, owned, strict=True)
                for b in t
                if not m.blocks.may_share_writes
            ]
            assert len(fresh) == len(set(fresh))

    @invariant()
    def subscribers_are_not_misled(self):
        """Whoever follows the events knows what the reported group has published."""
        for event in self.ledger.take_events():
            if isinstance(event, BlockStored):
                self.known.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.known.difference_update(event.block_hashes)
            else:
                assert isinstance(event, AllBlocksCleared)
                self.known.clear()
        group = self.windows.index(0) if 0 in self.windows else 0
        assert self.known <= set(self.ledger._pools[group].cache.block_of)

    def teardown(self):
        if not hasattr(self, "ledger"):
            return
        for model in self.models:
            self.ledger.release(model.blocks)
        for group, block, _ in self.loads:
            self.ledger.finish_load(group, block, is_good=False)
        self.ledger.check_integrity()
        usage = self.ledger.usage()
        assert usage.free + usage.cached == usage.total

    # ---- the simulated executor ----------------------------------------------------------------

    def _enter(self, model: Model) -> None:
        model.seen = [{} for _ in self.windows]
        self.models.append(model)

    def _write(self, model: Model, count: int) -> int:
        start = model.computed
        is_promised = start + count <= model.blocks.promise_end and self.windows == (0,)
        granted = self.ledger.reserve(model.blocks, start, start + count)
        assert 0 <= granted <= count
        assert granted == count or not is_promised, "who was promised its prompt can finish it"
        for copy in self.ledger.take_copies():
            for offset in range(SIZE):
                source = self.kv[copy.group].get(copy.source * SIZE + offset)
                self.kv[copy.group][copy.target * SIZE + offset] = source
        for position in range(start, start + granted):
            for group, table in enumerate(model.blocks.tables):
                block = table[position // SIZE]
                assert block != GIVEN_BACK
                self.kv[group][block * SIZE + position % SIZE] = model.tag(position)
        return granted

    def _commit(self, model: Model, computed: int) -> None:
        model.computed = computed
        self.ledger.commit(model.blocks, computed, model.tokens)
        if model.chain is not None:
            self._note(model.salt, model.tokens, model.chain)

    def _note(self, salt: bytes, tokens: list[int], chain: HashChain) -> None:
        for index, name in enumerate(chain.hashes):
            known = self.names.setdefault(name, (salt, tokens[: (index + 1) * SIZE]))
            assert known == (salt, tokens[: (index + 1) * SIZE]), "one name, one content"

    def _see(self, model: Model) -> None:
        for group, first, block_ids in model.blocks.take_writes():
            model.seen[group].update(enumerate(block_ids, first))


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
