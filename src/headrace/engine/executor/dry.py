"""Which slots are penalised for repetition, and with which breakers: see `core.sampling.Dry`."""

import numpy as np
from numpy.typing import NDArray

from headrace.core.sampling import Dry
from headrace.core.step import SequenceStart
from headrace.kernels.values import DryBatch


class DrySlots:
    """Settings by slot. Not thread-safe. The history itself is the slot table's."""

    def __init__(self) -> None:
        self._slots: dict[int, Dry] = {}

    def start(self, start: SequenceStart) -> None:
        """A sequence takes its slot."""
        self.end(start.slot)
        if start.params.dry is not None:
            self._slots[start.slot] = start.params.dry

    def end(self, slot: int) -> None:
        """The slot is free."""
        self._slots.pop(slot, None)

    def gather(self, slots: NDArray[np.int32], vocab_size: int) -> DryBatch | None:
        """The penalties of rows of these slots; None where there are none."""
        rows = [self._slots.get(slot) for slot in slots.tolist()] if self._slots else []
        found = [dry for dry in rows if dry is not None]
        if not found:
            return None
        # Sequences of one request have the same breakers.
        keys = [(dry.breakers, dry.breaker_words) for dry in found]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        off = Dry(multiplier=0.0, base=1.0, allowed_length=1, window=0)
        known = [off if dry is None else dry for dry in rows]
        return DryBatch(
            multiplier=np.array([dry.multiplier for dry in known], np.float32),
            base=np.array([dry.base for dry in known], np.float32),
            allowed_length=np.array([dry.allowed_length for dry in known], np.int32),
            window=np.array([dry.window for dry in known], np.int32),
            sets=np.array(
                [places.get((dry.breakers, dry.breaker_words), 0) for dry in known], np.int32
            ),
            breakers=np.stack([_mask_of(ids, vocab_size) for ids, _ in places]),
            words=_words_of([words for _, words in places]),
        )


def _mask_of(token_ids: tuple[int, ...], vocab_size: int) -> NDArray[np.uint32]:
    """[ceil(V / 32)]; ids that the model has no logits for cannot occur."""
    flags = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    ids: NDArray[np.int64] = np.array(token_ids, np.int64)
    flags[ids[ids < vocab_size]] = 1
    return np.packbits(flags, bitorder="little").view(np.uint32)


def _words_of(sets: list[tuple[tuple[int, ...], ...]]) -> NDArray[np.int32]:
    """[sets, W]: `DryBatch.words`."""
    lists = [[number for word in words for number in (len(word), *word)] for words in sets]
    table = np.zeros((len(sets), max(map(len, lists)) + 1), np.int32)
    for row, numbers in zip(table, lists, strict=True):
        row[: len(numbers)] = numbers
    return table
