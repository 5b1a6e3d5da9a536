"""Which waiting sequences may join now: the batching strategies as one small protocol."""

from typing import Protocol

from headrace.config.engine import Batching, SchedulerConfig
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.queue import WaitingQueue
from headrace.engine.scheduler.sequence import Sequence, SequenceGroup


def admission_margin(ledger: KVLedger) -> int:
    """Blocks kept free at admission beside running sequences, so that their next ones need no preemption."""
    return max(1, ledger.smallest_group // 100)


class AdmissionPolicy(Protocol):
    """Decides who may join; slots, tokens and memory are checked by the planner."""

    def refresh(self, queue: WaitingQueue, now: float) -> None:
        """Called before each round of admissions."""
        ...

    def allows(self, sequence: Sequence) -> bool:
        """Whether this waiting sequence may join the running ones."""
        ...

    def wake_at(self, queue: WaitingQueue) -> float | None:
        """When the answer may change although nothing arrives and nothing ends."""
        ...


class ContinuousAdmission:
    """Anyone, at any step."""

    def refresh(self, queue: WaitingQueue, now: float) -> None:
        """Nothing to decide."""

    def allows(self, sequence: Sequence) -> bool:
        """Always."""
        return True

    def wake_at(self, queue: WaitingQueue) -> float | None:
        """Never changes by time alone."""
        return None


class BatchAdmission:
    """`size` requests form a batch and run until the last one ends; no one joins meanwhile.

    A batch that is not full starts after `window` seconds: counted from its oldest request with
    `is_eager` (dynamic), else from the newest arrival (static: no one came for that long, so "nothing
    else can come").
    """

    def __init__(self, size: int, window: float, *, is_eager: bool) -> None:
        self._size = size
        self._window = window
        self._is_eager = is_eager
        self._members: list[SequenceGroup] = []

    def refresh(self, queue: WaitingQueue, now: float) -> None:
        """Form the next batch when the last one has ended and this one may start."""
        self._members = [group for group in self._members if group.num_live]
        if self._members or not len(queue):
            return
        if len(queue) >= self._size or now >= self._start_at(queue):
            self._members = [sequence.group for sequence in queue][: self._size]

    def allows(self, sequence: Sequence) -> bool:
        """Only members of the batch."""
        return sequence.group in self._members

    def wake_at(self, queue: WaitingQueue) -> float | None:
        """When a partial batch starts."""
        return None if self._members or not len(queue) else self._start_at(queue)

    def _start_at(self, queue: WaitingQueue) -> float:
        # Between batches the queue holds one sequence, the leader, of each waiting request.
        arrivals = [sequence.group.queued_at for sequence in queue]
        return (min(arrivals) if self._is_eager else max(arrivals)) + self._window


def create_admission(config: SchedulerConfig) -> AdmissionPolicy:
    """The policy that the configuration names."""
    if config.batching is Batching.CONTINUOUS:
        return ContinuousAdmission()
    return BatchAdmission(
        config.batch_size, config.batch_window, is_eager=config.batching is Batching.DYNAMIC
    )
