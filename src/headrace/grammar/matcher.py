"""One sequence's place in its grammar."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.grammar.compiler import CompiledGrammar, plain

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


class Matcher:
    """Starts at the beginning; `accept` moves on. Not thread-safe."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        # Held so that the compiler still finds it while a sequence of its runs.
        self._compiled = compiled
        self.state: LLMatcher = compiled.start.deep_copy()

    @property
    def num_tokens(self) -> int:
        """Bits of a mask."""
        return self._compiled.num_tokens

    @property
    def is_complete(self) -> bool:
        """Fulfilled, and nothing may follow."""
        return self.state.is_stopped() and not self.state.is_error() and self.state.is_accepting()

    @property
    def fault(self) -> str | None:
        """Why it cannot go on: a token that it does not allow, or a place that is too complex for it."""
        return plain(self.state.get_error()) if self.state.is_error() else None

    def accept(self, token_ids: Sequence[int]) -> bool:
        """Move over these tokens. False: one is not allowed, and the matcher is of no more use."""
        return self.state.consume_tokens(list(token_ids))

    def try_accept(self, token_id: int) -> bool:
        """Move over a token if it is allowed."""
        return self.state.try_consume_tokens([token_id]) == 1

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        if num_tokens:
            self.state.rollback(num_tokens)


#: From this many masks on, it pays to wake other threads.
_MANY = 4


class MaskFiller:
    """Writes masks, many of them on several threads, with the interpreter's lock let go."""

    def __init__(self) -> None:
        self._threads: LLExecutor | None = None

    def fill(self, jobs: Sequence[tuple[Matcher, int]], table: NDArray[np.uint32]) -> None:
        """For each (matcher, row): the tokens that may come next, into that row of [N, words].

        Bit i % 32 of word i // 32 is token i. Rows are different ones; raises KernelError for a wrong shape.
        """
        num_rows, words = table.shape
        for matcher, row in jobs:
            if not 0 <= row < num_rows or words != -(-matcher.num_tokens // 32):
                raise KernelError("A mask does not fit its table.")
        address, num_bytes = table.ctypes.data, words * 4
        if len(jobs) < _MANY:
            for matcher, row in jobs:
                matcher.state.unsafe_compute_mask_ptr(address + row * num_bytes, num_bytes)
            return
        if self._threads is None:
            from llguidance import LLExecutor

            self._threads = LLExecutor()
        places = [(matcher.state, row) for matcher, row in jobs]
        self._threads.unsafe_compute_mask_ptr(places, address, num_bytes, num_rows)
