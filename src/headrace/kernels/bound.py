"""What `Program.bind` and `Backend.bind_sample` give: calls whose arrays were handed over once.

The plain forms here are for back ends that gain nothing from that.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.values import Buffer, SampleBatch, SampleOutput, StepInputs


class Draw(Protocol):
    """A bound `sample`."""

    @property
    def output(self) -> SampleOutput | None:
        """All of what was drawn last; valid until the next draw."""
        ...

    def __call__(self, allowed: NDArray[np.uint32] | None, /) -> list[int]:
        """Draw with these masks (`SampleBatch.allowed`). Each row's token; -1: its logits are not finite."""
        ...


class Scorer(Protocol):
    """The part of a back end that draws nothing."""

    def score(
        self,
        logits: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        num_logprobs: NDArray[np.int32],
    ) -> SampleOutput:
        """What `sample` reports of a token, of tokens [R] that are given: those of a prompt.

        `num_logprobs` [R] counts alternatives and is at least 0. Logits [R, V] stay as they are.
        """
        ...


class RunsAndReads(Protocol):
    """The part of a `Program` that is needed here."""

    def run(self, inputs: StepInputs) -> None: ...
    def read(self, buffer: Buffer, num_rows: int) -> NDArray[np.float32]: ...


Sample = Callable[[NDArray[np.float32], SampleBatch], SampleOutput]


def run_and_read(
    program: RunsAndReads, inputs: StepInputs, buffer: Buffer, num_rows: int
) -> Callable[[], NDArray[np.float32]]:
    """A call that runs and reads anew each time."""

    def call() -> NDArray[np.float32]:
        program.run(inputs)
        return program.read(buffer, num_rows)

    return call


class SampleAgain:
    """A `Draw` that samples anew each time."""

    def __init__(self, sample: Sample, logits: NDArray[np.float32], batch: SampleBatch) -> None:
        self._sample = sample
        self._logits = logits
        self._batch = batch
        self.output: SampleOutput | None = None

    def __call__(self, allowed: NDArray[np.uint32] | None, /) -> list[int]:
        """Draw with these masks."""
        self.output = self._sample(self._logits, replace(self._batch, allowed=allowed))
        token_ids: list[int] = self.output.token_ids.tolist()
        return token_ids
