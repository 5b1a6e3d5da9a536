"""Who gives way when memory is short."""

from collections.abc import Sequence as ListLike

from headrace.engine.scheduler.sequence import Sequence


def choose_victim(running: ListLike[Sequence], needy: Sequence) -> Sequence | None:
    """The running sequence of the lowest aged priority, the youngest among equals.

    None when that is `needy` itself: it keeps what it has and waits a step. The sequence of the best
    rank is therefore never preempted, so something always gets to its end.

    `running` is sorted by rank, best first.
    """
    victim = running[-1]
    return None if victim is needy else victim
