"""A step's time from what was seen of it: least squares that take nothing to be less than free.

Every sample is a sum of unknown coefficients times known counts. Errors count relative to what was seen, so that
short steps matter as much as long ones. Negative coefficients are left out one after another, the most negative first.
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

#: What a coefficient is of, in this order.
TERMS = ("fixed", "prefill_token", "decode_row", "attended_token", "request")


class Sample(NamedTuple):
    """One time that was measured, and what was done in it."""

    seconds: float
    steps: float
    prefill_tokens: float
    decode_rows: float
    attended_tokens: float
    requests: float
    """Ways from a client to the engine and back."""


class Fit(NamedTuple):
    """Coefficients in the order of TERMS, and the root of the mean squared relative error."""

    coefficients: tuple[float, ...]
    residual: float


def fit(samples: Sequence[Sample]) -> Fit:
    """The least squares. Raises ValueError for fewer than five samples."""
    if len(samples) < len(TERMS):
        raise ValueError(f"{len(samples)} samples do not tell {len(TERMS)} coefficients apart.")
    rows = [[value / s.seconds for value in s[1:]] for s in samples]
    # Counts differ by orders of magnitude: each column is brought to length 1.
    scales = [sqrt(sum(row[i] ** 2 for row in rows)) or 1.0 for i in range(len(TERMS))]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    kept = list(range(len(TERMS)))
    while True:
        found = _solve(scaled, kept)
        least = min(range(len(kept)), key=lambda i: found[i])
        if found[least] >= 0 or len(kept) == 1:
            break
        del kept[least]
    coefficients = [0.0] * len(TERMS)
    for place, value in zip(kept, found, strict=True):
        coefficients[place] = max(0.0, value) / scales[place]
    errors = [sum(c * v for c, v in zip(coefficients, row, strict=True)) - 1.0 for row in rows]
    return Fit(tuple(coefficients), sqrt(sum(e * e for e in errors) / len(errors)))


def _solve(rows: Sequence[Sequence[float]], kept: Sequence[int]) -> list[float]:
    """Normal equations for the right side 1, by Gauss' elimination; a trace of ridge keeps them solvable."""
    size = len(kept)
    matrix = [
        [sum(row[i] * row[j] for row in rows) + (1e-9 if i == j else 0.0) for j in kept]
        + [sum(row[i] for row in rows)]
        for i in kept
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(matrix[r][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [
                    a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)
                ]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
