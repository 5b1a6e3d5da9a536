"""Prompt positions that are given as vectors, by slot."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import KernelError
from headrace.core.step import PlanRow, SequenceStart


class SlotEmbeddings:
    """Truthy while some slot has any."""

    def __init__(self) -> None:
        self._spans: dict[int, list[tuple[int, NDArray[np.float32]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def start(self, start: SequenceStart) -> None:
        """A sequence takes its slot. Raises KernelError for vectors of a wrong number of bytes."""
        self.end(start.slot)
        spans: list[tuple[int, NDArray[np.float32]]] = []
        for given in start.embeddings:
            values = np.frombuffer(given.data, "<f4").astype(np.float32)
            if given.num_tokens < 1 or len(values) % given.num_tokens:
                raise KernelError("embeddings: the bytes are not so many vectors.")
            spans.append((given.start, values.reshape(given.num_tokens, -1)))
        if spans:
            self._spans[start.slot] = spans

    def end(self, slot: int) -> None:
        """Its sequence is over."""
        self._spans.pop(slot, None)

    def place(
        self, rows: tuple[PlanRow, ...], token_ids: NDArray[np.int32]
    ) -> NDArray[np.float32] | None:
        """`StepInputs.embeddings` of a step; the ids that stand for them are put into `token_ids` [T]."""
        found: list[NDArray[np.float32]] = []
        count = first = 0
        for row in rows:
            for start, vectors in self._spans.get(row.slot, ()):
                begin = max(row.start, start)
                end = min(row.start + row.num_tokens, start + len(vectors))
                if begin >= end:
                    continue
                ids = np.arange(-1 - count, -1 - count - (end - begin), -1, dtype=np.int32)
                token_ids[first + begin - row.start : first + end - row.start] = ids
                found.append(vectors[begin - start : end - start])
                count += end - begin
            first += row.num_tokens
        if not found:
            return None
        if len({part.shape[1] for part in found}) > 1:
            raise KernelError("embeddings: vectors of different sizes.")
        return np.concatenate(found)
