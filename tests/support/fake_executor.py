"""A double of the model executor that computes with integers and notices wrong memory handling.

What it is for
    Tests of the scheduler, the ledger, the engine and everything above that want real plans to be run
    without weights. It implements `engine.engine.Executor`; plans run in order when they are collected.

What it computes
    A stand-in for attention. The "keys and values" of one position are a single integer:

        kv(p) = hash(token at p, p, kv of every earlier position that the window lets p see, per group)

    read through the block tables that the plans gave, from the blocks where earlier rows put them. The
    token after p is `draw(kv(p), seed, output position)`. So the output depends on the whole history
    exactly as a transformer's does, and any mistake with blocks (a stale table entry, a block reused too
    early, a missed copy-on-write, a wrong prefix hit, a bad truncation) changes tokens.

What to compare with
    `reference_tokens.reference_tokens(request, index, ...)` computes the same function on a plain list, without blocks,
    slots, plans or batches. A correct engine gives exactly these tokens, whatever the load.

What it refuses
    It raises `PlanError`, naming the step, for plans that no executor could run: rows on empty slots,
    reads of positions that were never written or given back, two rows writing one block, a row with
    unknown input where nothing was sampled, more tokens than allowed.

Knobs
    `vocab_size` (small makes stop tokens likely), `row_error` (a function that may fail one row),
    `step_error` (one that may raise for a whole step), `clock` with `seconds_of` (lets time pass for each
    step, as a cost model), `tier` (what lies below its cache). `plans` keeps what was run when `keep_plans` is set. Values are stable for one
    Python version, not across versions: never store them in a golden file.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.evicting import mass_on
from tests.support.fake_clock import FakeClock
from tests.support.fake_tier import FakeTier

from headrace.core.events import TokenLogprobs
from headrace.core.request import MEDIA_TOKEN_ID
from headrace.core.sampling import SamplingParams
from headrace.core.step import (
    BlockLanding,
    BlockTransfer,
    OutputKind,
    PlanRow,
    RowResult,
    SequenceStart,
    StepPlan,
    StepResult,
)


class PlanError(AssertionError):
    """A plan that cannot be run."""


def draw(
    kv: int, seed: int, output_position: int, vocab_size: int, masked: Sequence[int] = ()
) -> int:
    """The token that follows a position: uniform over the ids that are not masked."""
    for attempt in range(1000):
        token = hash((kv, seed, output_position, attempt)) % vocab_size
        if token not in masked:
            return token
    raise PlanError("Every token is masked.")


def continuations(kv: int, vocab_size: int) -> list[tuple[int, float]]:
    """Every token and its log-probability after a position, likeliest first."""
    scored = [(token, -0.25 - hash((kv, token)) % 1000 / 250) for token in range(vocab_size)]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


@dataclass
class _Slot:
    """What the executor remembers of one slot."""

    params: SamplingParams
    mask_ids: tuple[int, ...]
    seed: int
    tables: list[list[int]]
    tokens: list[int]
    last_sampled: int | None = None
    num_computed: int = 0
    mass: list[int] = field(default_factory=list)
    """Per block of the group without a window, for a sequence whose attention is observed."""


@dataclass
class FakeExecutor:
    """See the module. `windows[g]` is the window of KV group g (0: all), as given to the ledger."""

    block_size: int
    windows: tuple[int, ...] = (0,)
    vocab_size: int = 64
    max_slots: int = 1 << 30
    max_tokens: int = 1 << 30
    row_error: Callable[[StepPlan, PlanRow], str | None] | None = None
    step_error: Callable[[StepPlan], Exception | None] | None = None
    clock: FakeClock | None = None
    seconds_of: Callable[[StepPlan], float] | None = None
    keep_plans: bool = False
    tier: FakeTier | None = None

    plans: list[StepPlan] = field(default_factory=list)
    refused: list[PlanError] = field(default_factory=list)
    """What it raised of its own accord: an engine that goes on after a failed step may hide it."""
    num_steps: int = 0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._submitted: deque[StepPlan] = deque()
        self._slots: dict[int, _Slot] = {}
        self._kv: list[dict[int, int]] = [{} for _ in self.windows]
        self._has_failed = False

    # ---- the Executor protocol -----------------------------------------------------------------

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan behind those submitted before."""
        self._submitted.append(plan)

    def collect(self) -> StepResult:
        """Run the oldest plan and return its result; not if it was submitted behind one that failed."""
        plan = self._submitted.popleft()
        try:
            if self._has_failed:
                raise RuntimeError("a plan before this one failed")
            return self._execute(plan)
        except Exception:
            self._has_failed = True
            raise
        finally:
            if not self._submitted:
                self._has_failed = False

    def _execute(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        if self.keep_plans:
            self.plans.append(plan)
        if self.clock is not None and self.seconds_of is not None:
            self.clock.advance(self.seconds_of(plan))
        error = self.step_error(plan) if self.step_error is not None else None
        if error is not None:
            raise error
        try:
            self._apply(plan)
            self._check(plan)
            rows = tuple(self._run(plan, row) for row in plan.rows)
            for store in plan.block_stores:
                self._store(store)
        except PlanError as failure:
            self.refused.append(PlanError(f"step {plan.step_id}: {failure}"))
            raise self.refused[-1] from None
        return StepResult(step_id=plan.step_id, rows=rows)

    def call(self, action: Callable[[], None]) -> None:
        """At once: nothing runs between two calls."""
        action()

    def take_landed(self) -> list[BlockLanding]:
        """Loads that are over."""
        return [] if self.tier is None else self.tier.take_landed(self._load)

    def park(self) -> None:
        """Forget all keys and values."""
        for blocks in self._kv:
            blocks.clear()

    def close(self) -> None:
        """Note that the engine gave it up."""
        self.is_closed = True

    # ---- the plan, in its order ----------------------------------------------------------------

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.ended_slots:
            self._slots.pop(slot, None)
        for start in plan.starts:
            self._start(start)
        for write in plan.block_writes:
            table = self._slot(write.slot).tables[write.group]
            missing = write.first + len(write.block_ids) - len(table)
            table.extend([-1] * missing)
            table[write.first : write.first + len(write.block_ids)] = write.block_ids
        size = self.block_size
        for copy in plan.block_copies:
            kv = self._kv[copy.group]
            for offset in range(size):
                value = kv.get(copy.source * size + offset)
                if value is None:
                    kv.pop(copy.target * size + offset, None)
                else:
                    kv[copy.target * size + offset] = value
        if self.tier is None and (plan.block_loads or plan.block_stores):
            raise PlanError("this executor has no tier below its cache")
        for load in plan.block_loads:
            for offset in range(size):  # whoever reads it before it is there finds nothing
                self._kv[load.group].pop(load.block * size + offset, None)
            self.tier.begin(load)

    def _load(self, load: BlockTransfer, values: list[int]) -> None:
        first = load.block * self.block_size
        self._kv[load.group].update(enumerate(values, first))

    def _store(self, store: BlockTransfer) -> None:
        first, kv = store.block * self.block_size, self._kv[store.group]
        values = [kv.get(place) for place in range(first, first + self.block_size)]
        if None in values:
            raise PlanError(f"block {store.block} of group {store.group} is stored half empty")
        self.tier.store(store, values)

    def _start(self, start: SequenceStart) -> None:
        if not 0 <= start.slot < self.max_slots:
            raise PlanError(f"slot {start.slot} does not exist")
        if start.slot in self._slots:
            raise PlanError(f"slot {start.slot} is started while it is in use")
        self._slots[start.slot] = _Slot(
            start.params,
            start.mask_token_ids,
            start.seed,
            [[] for _ in self.windows],
            list(start.token_ids),
        )
        for given in start.embeddings:
            values = [hash((given.data, offset)) for offset in range(given.num_tokens)]
            self._slots[start.slot].tokens[given.start : given.start + given.num_tokens] = values

    def _check(self, plan: StepPlan) -> None:
        if not plan.rows and not plan.block_loads and not plan.block_stores:
            raise PlanError("the plan has no rows")
        if plan.num_tokens > self.max_tokens:
            raise PlanError(f"{plan.num_tokens} tokens exceed {self.max_tokens}")
        written: set[tuple[int, int]] = set()
        for row in plan.rows:
            slot = self._slot(row.slot)
            size = self.block_size
            blocks = range(row.start // size, (row.start + row.num_tokens - 1) // size + 1)
            for group, table in enumerate(slot.tables):
                for index in blocks:
                    if index >= len(table) or table[index] < 0:
                        raise PlanError(f"slot {row.slot} has no block to write entry {index}")
                    if self.tier is not None and self.tier.is_loading(group, table[index]):
                        raise PlanError(f"a row writes block {table[index]}, which is being loaded")
                    if (group, table[index]) in written:
                        raise PlanError(f"two rows write block {table[index]} of group {group}")
                    written.add((group, table[index]))

    def _run(self, plan: StepPlan, row: PlanRow) -> RowResult:
        slot = self._slot(row.slot)
        error = self.row_error(plan, row) if self.row_error is not None else None
        token_ids = row.token_ids or self._sampled(row, slot)
        token_ids = [
            slot.tokens[row.start + offset] if token == MEDIA_TOKEN_ID else token
            for offset, token in enumerate(token_ids)
        ]
        if len(token_ids) != row.num_tokens or row.num_draft >= max(1, row.num_tokens):
            raise PlanError(f"slot {row.slot}: {len(token_ids)} ids for {row.num_tokens} tokens")
        first_observed = row.start + row.num_tokens - row.num_observed
        kvs = [
            self._compute(slot, row.start + offset, token, first_observed)
            for offset, token in enumerate(token_ids)
        ]
        mass = tuple(map(float, slot.mass)) if row.reports_mass else ()
        if error is not None:
            slot.last_sampled = -1
            return RowResult(row.slot, error=error)
        scores = self._scores(slot, row)
        if row.output is OutputKind.NONE:
            return RowResult(row.slot, prompt_logprobs=scores, block_mass=mass)
        sampled = self._sample(slot, row, token_ids, kvs)
        slot.last_sampled = sampled[-1]
        first = row.num_tokens - 1 - row.num_draft
        logprobs = self._logprobs(slot, sampled, kvs[first:])
        return RowResult(
            row.slot, tuple(sampled), logprobs, prompt_logprobs=scores, block_mass=mass
        )

    # ---- the arithmetic ------------------------------------------------------------------------

    def _compute(self, slot: _Slot, position: int, token: int, first_observed: int) -> int:
        """Keys and values of one position, read through every group's table and stored in it."""
        is_observed = position >= first_observed
        reads = [
            self._read(slot, group, position, window, is_observed and not window)
            for group, window in enumerate(self.windows)
        ]
        visible = tuple(tuple(read.values()) for read in reads)
        value = hash((token, position, visible))
        size = self.block_size
        for group, table in enumerate(slot.tables):
            self._kv[group][table[position // size] * size + position % size] = value
        if is_observed and 0 in self.windows:
            slot.mass += [0] * (position // size + 1 - len(slot.mass))
            for earlier, kv in ({position: value} | reads[self.windows.index(0)]).items():
                slot.mass[earlier // size] += mass_on(value, kv)
        return value

    def _read(
        self, slot: _Slot, group: int, position: int, window: int, may_skip: bool
    ) -> dict[int, int]:
        """Earlier positions and their values; those of blocks that were given up are left out if `may_skip`."""
        first = max(0, position - window + 1) if window else 0
        table, size, kv = slot.tables[group], self.block_size, self._kv[group]
        values: dict[int, int] = {}
        for earlier in range(first, position):
            block = table[earlier // size]
            if block < 0 and may_skip:
                continue
            value = kv.get(block * size + earlier % size) if block >= 0 else None
            if value is None:
                raise PlanError(
                    f"position {position} reads position {earlier} of group {group}, "
                    f"which is not there (block {block})"
                )
            values[earlier] = value
        return values

    def _sample(
        self, slot: _Slot, row: PlanRow, token_ids: Sequence[int], kvs: list[int]
    ) -> list[int]:
        """The draw after the last known token, and on while a draft equals the draw before it."""
        first = row.num_tokens - 1 - row.num_draft
        sampled: list[int] = []
        for step in range(row.num_draft + 1):
            output = row.first_output + step
            mask = slot.mask_ids if output < slot.params.min_tokens else ()
            sampled.append(draw(kvs[first + step], slot.seed, output, self.vocab_size, mask))
            if step < row.num_draft and token_ids[first + step + 1] != sampled[-1]:
                break
        return sampled

    def _sampled(self, row: PlanRow, slot: _Slot) -> list[int]:
        if row.num_tokens != 1 or slot.last_sampled is None:
            raise PlanError(f"slot {row.slot} has sampled nothing that it could run")
        return [slot.last_sampled]

    def _logprobs(
        self, slot: _Slot, sampled: list[int], kvs: list[int]
    ) -> tuple[TokenLogprobs, ...]:
        count = slot.params.logprobs
        if count is None:
            return ()
        return tuple(
            TokenLogprobs(token, -0.5, 1, tuple(continuations(kv, self.vocab_size)[:count]))
            for token, kv in zip(sampled, kvs, strict=False)
        )

    def _scores(self, slot: _Slot, row: PlanRow) -> tuple[TokenLogprobs, ...]:
        """As `_logprobs`, of the prompt's tokens; the position is in the number."""
        if row.num_scored > row.num_tokens:
            raise PlanError(f"slot {row.slot} scores {row.num_scored} of {row.num_tokens} tokens")
        top = tuple((i, -1.0 - i) for i in range(slot.params.prompt_logprobs or 0))
        positions = range(row.start + 1, row.start + 1 + row.num_scored)
        return tuple(TokenLogprobs(slot.tokens[p], -p / 64, 1, top) for p in positions)

    def _slot(self, index: int) -> _Slot:
        if index not in self._slots:
            raise PlanError(f"slot {index} is empty")
        return self._slots[index]
