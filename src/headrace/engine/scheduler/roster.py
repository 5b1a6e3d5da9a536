"""Who is where: requests by id, the queue, running sequences, slots, and the blocks that they hold.

Every change of a sequence's state goes through here, so that state, place, slot and blocks always move
together.
"""

from bisect import insort

from headrace.core.events import FinishReason
from headrace.engine.memory.block_table import SequenceBlocks
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.queue import WaitingQueue
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup, SequenceState


def _rank(sequence: Sequence) -> tuple[float, int, int]:
    return sequence.rank


class Roster:
    """Slots [0, max_running).

    A slot that is given back may be taken at once: plans run in order, and a plan ends slots before it
    starts sequences. Rows in flight are matched to sequences by life, never by slot.
    """

    def __init__(self, ledger: KVLedger, max_running: int) -> None:
        self.groups: dict[str, SequenceGroup] = {}
        self.queue = WaitingQueue()
        self.running: list[Sequence] = []
        """Best rank first."""
        self.ended_slots: list[int] = []
        """Slots that the next plan tells the executor to forget."""
        self.num_held = 0
        self.num_changes = 0
        """Grows whenever somebody comes, goes, or changes state."""
        self._ledger = ledger
        self._num_slots = max_running
        self._free_slots = list(range(max_running - 1, -1, -1))

    @property
    def has_free_slot(self) -> bool:
        """One more sequence may run."""
        return bool(self._free_slots)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, those HELD for a sibling included."""
        return len(self.queue) + self.num_held

    def add(self, group: SequenceGroup) -> None:
        """A new request: its leader joins the queue, its siblings are held."""
        self.num_changes += 1
        self.groups[group.request.request_id] = group
        self.num_held += len(group.sequences) - 1
        self.queue.push(group.sequences[0])

    def start(self, sequence: Sequence, blocks: SequenceBlocks, now: float) -> None:
        """From the queue into a slot."""
        self.num_changes += 1
        self.queue.remove(sequence)
        sequence.run(self._free_slots.pop(), blocks)
        insort(self.running, sequence, key=_rank)
        if sequence.group.first_scheduled is None:
            sequence.group.first_scheduled = now

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Back to the queue, at its old rank; its published blocks stay in the prefix cache."""
        self.num_changes += 1
        self._vacate(sequence)
        sequence.preempt(now)
        self.queue.push(sequence)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Out of the engine, from wherever it is; its blocks are free before the next plan."""
        self.num_changes += 1
        if sequence.state is SequenceState.RUNNING:
            self._vacate(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.queue.remove(sequence)
        else:
            self.num_held -= 1
        sequence.end(reason)
        group = sequence.group
        group.num_live -= 1
        if group.num_live == 0:
            del self.groups[group.request.request_id]
        elif not group.is_prompt_computed:
            self._ensure_leader(group)

    def hold(self, sequence: Sequence) -> None:
        """Out of its slot: a beam that has no future."""
        self.num_changes += 1
        self._vacate(sequence)
        sequence.hold()
        self.num_held += 1

    def enqueue(self, sequence: Sequence) -> None:
        """A held sequence may run now."""
        self.num_changes += 1
        sequence.enqueue()
        self.num_held -= 1
        self.queue.push(sequence)

    def prompt_computed(self, group: SequenceGroup) -> None:
        """The shared beginning is committed: siblings may fork it."""
        group.is_prompt_computed = True
        for sequence in group.held():
            self.enqueue(sequence)

    def end_all_slots(self) -> None:
        """Have the next plan end every slot; ending an empty one does no harm."""
        self.ended_slots = list(range(self._num_slots))

    def take_ended_slots(self) -> tuple[int, ...]:
        """Slots to end in the plan that is being made."""
        if not self.ended_slots:
            return ()
        slots, self.ended_slots = tuple(self.ended_slots), []
        return slots

    def _ensure_leader(self, group: SequenceGroup) -> None:
        live = group.live()
        if all(sequence.state is SequenceState.HELD for sequence in live):
            self.enqueue(live[0])

    def _vacate(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence.blocks is not None:
            self._ledger.release(sequence.blocks)
        self.ended_slots.append(sequence.slot)
        self._free_slots.append(sequence.slot)
