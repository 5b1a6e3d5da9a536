"""What ranks that share one model tell each other while a step runs."""

from typing import Protocol

from headrace.kernels.ops import Recorder
from headrace.kernels.values import Buffer


class Collectives(Protocol):
    """Records exchanges into the program. All ranks record the same ones in the same order."""

    def gather_columns(self, recorder: Recorder, x: Buffer, width: int) -> Buffer:
        """A buffer of `width` columns: those of all ranks' `x`, in rank order."""
        ...

    def share_columns(self, recorder: Recorder, buffer: Buffer, columns: range) -> None:
        """In place: this rank wrote `columns`, afterwards every rank has all of them."""
        ...

    def receive(self, recorder: Recorder, hidden: Buffer) -> None:
        """Fill the residual stream from the stage before."""
        ...

    def send(self, recorder: Recorder, hidden: Buffer) -> None:
        """Hand the residual stream to the stage behind."""
        ...


class SingleRank:
    """One rank holds everything: nothing is recorded."""

    def gather_columns(self, recorder: Recorder, x: Buffer, width: int) -> Buffer:
        return x

    def share_columns(self, recorder: Recorder, buffer: Buffer, columns: range) -> None:
        return None

    def receive(self, recorder: Recorder, hidden: Buffer) -> None:
        return None

    def send(self, recorder: Recorder, hidden: Buffer) -> None:
        return None
