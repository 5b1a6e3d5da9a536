"""Specification of sampling: a pure function of logits, parameters, history and hashed noise.

One row, in this order (`core.sampling.SamplingParams` has the same list):

1. Edit the logits: add biases (a mask is a bias of -inf), drop tokens that `allowed` does not list;
   repetition penalty for every token of the history (Keskar et al., 2019: positive logits are divided,
   others multiplied); presence and frequency penalty for tokens of the output; the penalty for going on
   with a repetition (`reference/dry.py`).
2. Temperature 0: the largest logit, the lowest id among equals. Otherwise
   `s = (z - max z) * (1 / temperature)`, and the likeliest tokens, ordered by (s descending, id
   ascending), are kept: the first top_k; of these, the shortest prefix whose share of their
   probability reaches top_p (Holtzman et al., 2020); of these, those at least min_p times as likely as
   the first, `s >= log(min_p)` (Nguyen et al., 2024); of these, those with `s >= -n * sigma`, sigma the
   standard deviation of all s above -inf (top-n-sigma, Tang et al., 2024); of these, those whose information
   is nearest to the entropy until their share reaches typical_p, and all as near as the last (Meister et
   al., 2023); of these, when the draw's own number (the hash of token 2^32 - 1) is below xtc_probability,
   those less than xtc_threshold likely and the last of the others (exclude top choices, P. E. Weidmann).
3. Gumbel-max: the kept token with the largest `s + g` (lowest id among equals), with g from
   `reference/noise.py`. This draws from the softmax of the kept s (Gumbel, 1954; Maddison et al., 2014).

Rows whose logits hold NaN or +inf (before or after step 1), or that have no token left above -inf, give token -1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.reference.dry import dry_penalties
from headrace.kernels.reference.noise import gumbel, row_key, uniform
from headrace.kernels.values import SampleBatch, SampleOutput

Float32 = NDArray[np.float32]

#: 1 / temperature is bounded, so that a tiny temperature is greedy with ties drawn at random.
LARGEST_INVERSE_TEMPERATURE = np.float32(1e30)


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens may be drawn."""

    top_k: int
    top_p: float
    min_p: float


def sample(logits: Float32, batch: SampleBatch) -> SampleOutput:
    """Draw one token per row of logits [R, V]."""
    num_rows = len(logits)
    output = empty_output(num_rows, batch.num_logprobs)
    for row in range(num_rows):
        token = sample_row(logits[row], batch, row)
        output.token_ids[row] = token
        output.is_finite[row] = token >= 0
        if token >= 0 and batch.num_logprobs[row] >= 0:
            shown = (
                left_to_draw(logits[row], batch, row) if batch.post_sampling[row] else logits[row]
            )
            report_logprobs(shown, token, int(batch.num_logprobs[row]), row, output)
    return output


def score(
    logits: Float32, token_ids: NDArray[np.int32], num_logprobs: NDArray[np.int32]
) -> SampleOutput:
    """What is reported of given tokens, one per row of logits [R, V]."""
    output = empty_output(len(logits), num_logprobs)
    output.token_ids[:] = token_ids
    for row, token in enumerate(token_ids.tolist()):
        if is_usable(logits[row]) and np.isfinite(logits[row]).any():
            output.is_finite[row] = True
            report_logprobs(logits[row], token, int(num_logprobs[row]), row, output)
    return output


def empty_output(num_rows: int, num_logprobs: NDArray[np.int32]) -> SampleOutput:
    """Nothing drawn, nothing reported."""
    num_top = max([0, *num_logprobs.tolist()])
    return SampleOutput(
        token_ids=np.full(num_rows, -1, np.int32),
        is_finite=np.zeros(num_rows, np.bool_),
        logprobs=np.full(num_rows, np.nan, np.float32),
        ranks=np.zeros(num_rows, np.int32),
        top_ids=np.full((num_rows, num_top), -1, np.int32),
        top_logprobs=np.full((num_rows, num_top), -np.inf, np.float32),
    )


def sample_row(logits: Float32, batch: SampleBatch, row: int) -> int:
    """The token of one row, or -1 if none can be drawn."""
    if not is_usable(logits):
        return -1
    edited = edit_logits(logits, batch, row)
    if not is_usable(edited) or not np.isfinite(edited).any():
        return -1
    if not batch.temperature[row] > 0:
        return int(np.argmax(edited))
    scaled, kept, key = draw_from(edited, batch, row)
    perturbed = scaled[kept] + gumbel(key, kept.astype(np.uint32))
    return int(kept[np.argmax(perturbed)])


def draw_from(
    edited: Float32, batch: SampleBatch, row: int
) -> tuple[Float32, NDArray[np.int64], int]:
    """Scaled logits, the ids among them that may be drawn, and the key of the noise."""
    temperature = np.float32(batch.temperature[row])
    with np.errstate(over="ignore"):
        inverse = np.minimum(np.float32(1) / temperature, LARGEST_INVERSE_TEMPERATURE)
        scaled = (edited - edited.max()) * inverse
    truncation = Truncation(int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row]))
    kept = kept_tokens(scaled, truncation)
    key = row_key(int(batch.seeds[row]), int(batch.output_positions[row]))
    return scaled, narrow(scaled, kept, batch, row, key), key


def left_to_draw(logits: Float32, batch: SampleBatch, row: int) -> Float32:
    """Scaled logits of what a row was drawn from, -inf elsewhere; one token without noise."""
    edited = edit_logits(logits, batch, row)
    left = np.full_like(edited, -np.inf)
    if not batch.temperature[row] > 0:
        left[np.argmax(edited)] = 0.0
        return left
    scaled, kept, _ = draw_from(edited, batch, row)
    left[kept] = scaled[kept]
    return left


def is_usable(logits: Float32) -> bool:
    """Neither NaN nor +inf; -inf is a token that cannot be drawn."""
    return bool((logits < np.inf).all())


def edit_logits(logits: Float32, batch: SampleBatch, row: int) -> Float32:
    """Biases, masks and penalties, on a copy."""
    edited = logits.copy()
    vocab_size = len(logits)
    entries = slice(int(batch.bias_starts[row]), int(batch.bias_starts[row + 1]))
    for token, bias in zip(batch.bias_ids[entries], batch.bias_values[entries], strict=True):
        if 0 <= token < vocab_size:
            edited[token] += bias
    if batch.allowed is not None:
        bits = np.unpackbits(batch.allowed[row].view(np.uint8), bitorder="little")
        edited[bits[:vocab_size] == 0] = -np.inf
    history = batch.history[batch.slots[row], : batch.history_lengths[row]]
    repetition = np.float32(batch.repetition_penalty[row])
    if repetition != 1:
        seen = np.unique(in_vocabulary(history, vocab_size))
        values = edited[seen]
        edited[seen] = np.where(values > 0, values / repetition, values * repetition)
    presence, frequency = batch.presence_penalty[row], batch.frequency_penalty[row]
    output = in_vocabulary(history[batch.num_prompt[row] :], vocab_size)
    ids, counts = np.unique(output, return_counts=True)
    edited[ids] -= presence + frequency * counts.astype(np.float32)
    if batch.dry is not None and batch.dry.multiplier[row] != 0:
        for token, penalty in dry_penalties(history.tolist(), batch.dry, row, vocab_size).items():
            edited[token] -= penalty
    return edited


def in_vocabulary(ids: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    """Ids that have a logit; placeholders of media have none."""
    return ids[(ids >= 0) & (ids < vocab_size)]


def kept_tokens(scaled: Float32, truncation: Truncation) -> NDArray[np.int64]:
    """Ids that may be drawn, ascending. `scaled` has its maximum at 0; -inf is never kept."""
    order = np.argsort(-scaled, kind="stable")  # ties keep the lower id first
    order = order[scaled[order] > -np.inf]
    if truncation.top_k > 0:
        order = order[: truncation.top_k]
    weights = np.exp(scaled[order].astype(np.float64))
    if truncation.top_p < 1:
        reached = np.cumsum(weights) >= truncation.top_p * weights.sum()
        order = order[: int(np.argmax(reached)) + 1]
    if truncation.min_p > 0:
        order = order[scaled[order] >= np.float32(np.log(np.float64(truncation.min_p)))]
    return np.sort(order)


def narrow(
    scaled: Float32, kept: NDArray[np.int64], batch: SampleBatch, row: int, key: int
) -> NDArray[np.int64]:
    """What top_n_sigma, typical_p and xtc leave of these ids, ascending."""
    sigmas = batch.top_n_sigma[row]
    if sigmas > 0:
        deviation = scaled[scaled > -np.inf].astype(np.float64).std()
        kept = kept[scaled[kept] >= np.float32(-np.float64(sigmas) * deviation)]
    if batch.typical_p[row] < 1:
        weights = np.exp(scaled[kept].astype(np.float64))
        centre = np.float32((weights * scaled[kept]).sum() / weights.sum())
        distance = np.abs(scaled[kept] - centre)
        order = np.argsort(distance, kind="stable")
        reached = np.cumsum(weights[order]) >= np.float64(batch.typical_p[row]) * weights.sum()
        kept = kept[distance <= distance[order[np.argmax(reached)]]]
    if np.float32(uniform(key)) < batch.xtc_probability[row]:
        weights = np.exp(scaled[kept].astype(np.float64))
        likely = kept[weights >= np.float64(batch.xtc_threshold[row]) * weights.sum()]
        if len(likely) >= 2:
            last = likely[np.lexsort((likely, -scaled[likely]))[-1]]
            kept = kept[~np.isin(kept, likely) | (kept == last)]
    return kept


def report_logprobs(
    logits: Float32, token: int, num_top: int, row: int, output: SampleOutput
) -> None:
    """Log-probability and rank of the token, and the best alternatives, of the raw logits."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    logprobs = wide - (largest + np.log(np.exp(wide - largest).sum()))
    order = np.argsort(-logits, kind="stable")
    output.logprobs[row] = logprobs[token]
    output.ranks[row] = int(np.flatnonzero(order == token)[0]) + 1
    best = order[:num_top]
    best = best[logits[best] > -np.inf]  # a token that cannot occur is no alternative
    output.top_ids[row, : len(best)] = best
    output.top_logprobs[row, : len(best)] = logprobs[best]
