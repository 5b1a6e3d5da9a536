"""Which rows of a step are vectors that a prompt gave."""

import numpy as np
import pytest

from headrace.core.errors import KernelError
from headrace.core.sampling import SamplingParams
from headrace.core.step import GivenEmbeddings, OutputKind, PlanRow, SequenceStart
from headrace.engine.executor.embeddings import SlotEmbeddings


def vectors(first, count, width=2):
    return np.arange(first, first + count * width, dtype=np.float32).reshape(count, width)


def start(slot, *given):
    spans = tuple(GivenEmbeddings(at, len(rows), rows.tobytes()) for at, rows in given)
    return SequenceStart(slot, SamplingParams(), (), [], 0, 0, embeddings=spans)


def row(slot, first, count):
    return PlanRow(slot, first, count, [], OutputKind.NONE)


def test_rows_take_the_vectors_of_their_positions():
    embeddings = SlotEmbeddings()
    assert not embeddings
    embeddings.start(start(3, (2, vectors(0, 3)), (7, vectors(50, 1))))
    embeddings.start(start(1))
    ids = np.full(9, 5, np.int32)
    given = embeddings.place((row(1, 0, 2), row(3, 3, 7)), ids)
    #               slot 1   positions 3 .. 9 of slot 3
    assert list(ids) == [5, 5, -1, -2, 5, 5, -3, 5, 5]
    np.testing.assert_array_equal(given, [*vectors(0, 3)[1:], *vectors(50, 1)])
    assert embeddings.place((row(3, 8, 1),), ids) is None


def test_a_slot_forgets_what_an_earlier_sequence_gave():
    embeddings = SlotEmbeddings()
    embeddings.start(start(0, (0, vectors(0, 2))))
    embeddings.start(start(0))
    assert not embeddings
    embeddings.start(start(0, (0, vectors(0, 2))))
    embeddings.end(0)
    assert not embeddings


def test_what_is_no_matrix_is_refused():
    embeddings = SlotEmbeddings()
    bad = SequenceStart(
        0, SamplingParams(), (), [], 0, 0, embeddings=(GivenEmbeddings(0, 3, b"\0" * 16),)
    )
    with pytest.raises(KernelError, match="vectors"):
        embeddings.start(bad)
    embeddings.start(start(0, (0, vectors(0, 1, 2))))
    embeddings.start(start(1, (0, vectors(0, 1, 3))))
    with pytest.raises(KernelError, match="sizes"):
        embeddings.place((row(0, 0, 1), row(1, 0, 1)), np.zeros(2, np.int32))
