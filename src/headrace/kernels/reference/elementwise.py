"""Specification of the elementwise ops: float32 in, computed in float64, rounded once.

Back ends compute in float32; their results lie within a few units in the last place of these.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.values import Activation

#: numpy has no erfc.
_ERFC: Final = np.vectorize(math.erfc, otypes=[np.float64])


def rms_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float
) -> NDArray[np.float32]:
    """Give x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""
    wide = x.astype(np.float64)
    inverse = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    normalised: NDArray[np.float64] = wide * inverse * weight.astype(np.float64)
    return normalised.astype(np.float32)


def layer_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], bias: NDArray[np.float32], eps: float
) -> NDArray[np.float32]:
    """Give (x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al., 2016)."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    inverse = 1.0 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    normalised: NDArray[np.float64] = centred * inverse * weight.astype(np.float64)
    return (normalised + bias.astype(np.float64)).astype(np.float32)


def activate(x: NDArray[np.float64], kind: Activation) -> NDArray[np.float64]:
    """SiLU: x * sigmoid(x). GELU with erf, or with tanh (Hendrycks and Gimpel, 2016, section 2).

    0.5 (1 + erf u) is written as erfc(-u) / 2, and 0.5 (1 + tanh u) as sigmoid(2u), which do not cancel
    for negative u.
    """
    if kind is Activation.GELU:
        tail: NDArray[np.float64] = _ERFC(-x * np.sqrt(0.5))
        return x * tail / 2
    cubic = 2.0 * np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
    twice = x if kind is Activation.SILU else cubic
    with np.errstate(over="ignore"):
        gate: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-twice))
    return x * gate


def gated_activation(x: NDArray[np.float32], kind: Activation) -> NDArray[np.float32]:
    """[*, 2I] -> [*, I]: activate(first half) * second half (Shazeer, 2020: GLU variants)."""
    half = x.shape[1] // 2
    wide = x.astype(np.float64)
    return (activate(wide[:, :half], kind) * wide[:, half:]).astype(np.float32)


def activation(x: NDArray[np.float32], kind: Activation) -> NDArray[np.float32]:
    """The function of each element."""
    return activate(x.astype(np.float64), kind).astype(np.float32)


def soft_cap(x: NDArray[np.float32], cap: float) -> NDArray[np.float32]:
    """Give cap * tanh(x / cap) (Gemma 2 report, 2024, section 2)."""
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


def rope_table(
    positions: NDArray[np.int32], frequencies: NDArray[np.float32], scale: float
) -> NDArray[np.float32]:
    """[T, 2F]: cos(p * f) * scale, then sin(p * f) * scale; the angle is a float64 product."""
    angles = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    return (np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scale).astype(np.float32)


def rotate(heads: NDArray[np.float32], table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotate the first F pairs (i, i + F) of each head; heads [T, *, D], table [T, 2F].

    RoFormer (Su et al., 2021, equation 34) with the halves of a head paired, as GPT-NeoX does.
    """
    num_pairs = table.shape[1] // 2
    cos = table[:, None, :num_pairs].astype(np.float64)
    sin = table[:, None, num_pairs:].astype(np.float64)
    first = heads[..., :num_pairs].astype(np.float64)
    second = heads[..., num_pairs : 2 * num_pairs].astype(np.float64)
    out = heads.copy()
    out[..., :num_pairs] = first * cos - second * sin
    out[..., num_pairs : 2 * num_pairs] = second * cos + first * sin
    return out
