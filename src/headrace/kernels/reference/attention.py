"""Specification of paged attention: gather the visible keys, then softmax in float64.

Scaled dot-product attention (Vaswani et al., 2017, equation 1) with grouped KV heads (Ainslie et al.,
2023), optional cap of the scores (Gemma 2 report, section 2) and sliding window (Beltagy et al., 2020).
Back ends take keys in chunks of `ATTENTION_CHUNK` and merge the chunks' (max, sum, weighted values) in
ascending order (Milakov and Gimelshein, 2018), which is the same value up to float32 rounding.

What a back end may round besides, by the dtype of keys and values:

- bf16: products are added in adjacent pairs (elements 2i and 2i + 1 of a key; keys 2i and 2i + 1, an unseen
  one counts as zero). Where the instruction set multiplies such pairs, queries and weights are rounded to bf16.
- int8, int16: both sums are exact integers. The query is quantised like a key, or, for int16, to
  `rint(q * (32752 / |q|))`; a row's weights w, times their tokens' value scales, to 16 bits: `rint(w / unit)`, where of the visible keys of the chunk
  `unit = max w / 32767` or, for int16, the larger of that and `sum w / (2^18 - 1024)`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """What one attention layer fixes."""

    scale: float
    soft_cap: float = 0.0
    window: int = 0
    is_causal: bool = True


def visible_keys(query_index: int, num_keys: int, window: int, is_causal: bool) -> tuple[int, int]:
    """Half-open range of key indices that the query at `query_index` sees, of [0, num_keys).

    Causal: up to itself, and above query_index - window. Not causal: all, or those with a distance
    below `window`.
    """
    first = max(0, query_index - window + 1) if window > 0 else 0
    if is_causal:
        return first, min(num_keys, query_index + 1)
    return first, min(num_keys, query_index + window) if window > 0 else num_keys


def attend(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    parameters: AttentionParameters,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """One token: queries [H, D] over its visible keys and values [L, G, D].

    Returns the output [H, D] and the probabilities [H, L]. A token that sees nothing gets zeros.
    """
    num_heads = queries.shape[0]
    length, num_kv_heads, _ = keys.shape
    if length == 0:
        return np.zeros_like(queries), np.zeros((num_heads, 0))
    group = np.arange(num_heads) * num_kv_heads // num_heads  # query head -> KV head
    wide_keys = keys.astype(np.float64)[:, group]  # [L, H, D]
    wide_values = values.astype(np.float64)[:, group]
    scores = np.einsum("hd,lhd->hl", queries.astype(np.float64), wide_keys) * parameters.scale
    if parameters.soft_cap > 0:
        scores = parameters.soft_cap * np.tanh(scores / parameters.soft_cap)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    output = np.einsum("hl,lhd->hd", probabilities, wide_values)
    return output.astype(np.float32), probabilities
