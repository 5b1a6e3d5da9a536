"""Samplers against plain re-statements of what they mean, written without looking at the kernels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.op_run import ISAS, cpu, reference
from tests.support.sample_batches import dry_batch, sample_batch

from headrace.core.sampling import Dry
from headrace.kernels.reference.noise import gumbel, row_key, uniform

#: A share of probability may be reached by rounding: both answers are right within this.
ROUNDING = 1e-5

# Quarters are exact in float32 however they are shifted, and make equals likely.
rows_of_logits = st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=1, max_size=24)
seeds = st.integers(0, 2**63 - 1)
shares = st.floats(0.0078125, 1.0, width=32)


def softmax(scaled, kept):
    largest = max(scaled[i] for i in kept)
    weights = {i: math.exp(scaled[i] - largest) for i in kept}
    total = sum(weights.values())
    return {i: weight / total for i, weight in weights.items()}


def plain_sigma(scaled, kept, n):
    mean = sum(scaled) / len(scaled)
    deviation = math.sqrt(sum((s - mean) ** 2 for s in scaled) / len(scaled))
    return [i for i in kept if scaled[i] >= max(scaled) - n * deviation]


def plain_typical(scaled, kept, share):
    chances = softmax(scaled, kept)
    entropy = -sum(p * math.log(p) for p in chances.values())
    distance = {i: abs(-math.log(chances[i]) - entropy) for i in kept}
    total, furthest = 0.0, 0.0
    for i in sorted(kept, key=lambda i: (distance[i], i)):
        if total >= share:
            break
        total, furthest = total + chances[i], distance[i]
    return [i for i in kept if distance[i] <= furthest + ROUNDING]


def plain_xtc(scaled, kept, threshold):
    chances = softmax(scaled, kept)
    likely = [i for i in kept if chances[i] >= threshold]
    if len(likely) < 2:
        return kept
    last = min(likely, key=lambda i: (chances[i], -i))
    return [i for i in kept if i not in likely or i == last]


def winner(scaled, kept, seed, position):
    noise = gumbel(row_key(seed, position), np.array(kept, np.uint32))
    perturbed = [np.float32(scaled[i]) + g for i, g in zip(kept, noise, strict=True)]
    return kept[int(np.argmax(perturbed))]


def assert_drawn(logits, settings, possible, seed, position):
    """Both back ends take the winner among what one of these sets keeps."""
    batch = sample_batch([{**settings, "seeds": seed, "output_positions": position}])
    scaled = [value - max(logits) for value in logits]
    wanted = {winner(scaled, sorted(kept), seed, position) for kept in possible}
    row = np.array([logits], np.float32)
    for backend in (reference(), *(cpu(isa) for isa in ISAS)):
        assert backend.sample(row.copy(), batch).token_ids[0] in wanted


@given(rows_of_logits, st.integers(1, 12).map(lambda n: n / 4), seeds, st.integers(0, 1000))
def test_top_n_sigma_keeps_what_is_near_the_largest(logits, n, seed, position):
    everything = range(len(logits))
    possible = [plain_sigma(logits, everything, n * (1 + e)) for e in (-ROUNDING, 0.0, ROUNDING)]
    assert_drawn(logits, {"top_n_sigma": n}, possible, seed, position)


@given(rows_of_logits, shares, seeds, st.integers(0, 1000))
def test_typical_p_keeps_what_is_as_surprising_as_expected(logits, share, seed, position):
    everything = range(len(logits))
    possible = [
        plain_typical(logits, everything, share + e) for e in (-ROUNDING, 0.0, ROUNDING)
    ] + ([everything] if share == 1 else [])
    assert_drawn(logits, {"typical_p": share}, possible, seed, position)


@given(rows_of_logits, st.floats(0.0, 0.625, width=32), st.floats(0.0, 1.0, width=32), seeds)
def test_xtc_drops_the_likeliest_by_a_chance_of_its_own(logits, threshold, chance, seed):
    everything = list(range(len(logits)))
    drops = float(np.float32(uniform(row_key(seed, 5)))) < chance
    possible = [
        plain_xtc(logits, everything, threshold + e) if drops else everything
        for e in (-ROUNDING, 0.0, ROUNDING)
    ]
    settings = {"xtc_probability": chance, "xtc_threshold": threshold}
    assert_drawn(logits, settings, possible, seed, 5)


@given(rows_of_logits, st.integers(1, 30), shares, st.floats(0.0, 0.5, width=32), seeds)
def test_they_work_one_behind_the_other(logits, top_k, share, threshold, seed):
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    first = sorted(order[:top_k])
    possible = []
    for e in (-ROUNDING, 0.0, ROUNDING):
        kept = plain_sigma(logits, first, 1.5 * (1 + e))
        if share < 1:
            kept = plain_typical(logits, kept, share + e)
        possible += [plain_xtc(logits, kept, threshold + f) for f in (-ROUNDING, 0.0, ROUNDING)]
    settings = {
        "top_k": top_k,
        "top_n_sigma": 1.5,
        "typical_p": share,
        "xtc_probability": 1.0,
        "xtc_threshold": threshold,
    }
    assert_drawn(logits, settings, possible, seed, 0)


# --- DRY -----------------------------------------------------------------------------------------

NUM_TOKENS = 6
histories = st.lists(st.integers(-1, NUM_TOKENS - 1), max_size=40)
words = st.lists(st.integers(0, NUM_TOKENS - 1), min_size=2, max_size=3).map(tuple)
drys = st.builds(
    Dry,
    multiplier=st.floats(0.125, 4.0, width=32),
    base=st.floats(1.0, 3.0, width=32),
    allowed_length=st.integers(1, 5),
    window=st.one_of(st.integers(0, 45), st.just(2**31 - 1)),
    breakers=st.lists(st.integers(0, NUM_TOKENS + 2), max_size=2, unique=True).map(tuple),
    breaker_words=st.lists(words, max_size=2, unique=True).map(tuple),
)


def holds_breaker(tokens, before, dry):
    """Whether a breaker ends in `tokens`, which stand behind `before`."""
    if any(t in dry.breakers or not 0 <= t < NUM_TOKENS for t in tokens):
        return True
    text = (*before, *tokens)
    return any(
        text[end - len(word) : end] == word
        for word in dry.breaker_words
        for end in range(max(len(before) + 1, len(word)), len(text) + 1)
    )


def plain_dry(history, dry):
    """Token → the length of the longest repetition that it would go on with, at least the allowed one."""
    seen = tuple(history[max(0, len(history) - dry.window) :])
    longest = {}
    for place, token in enumerate(seen):
        for n in range(dry.allowed_length, place + 1):
            end = seen[len(seen) - n :]
            if seen[place - n : place] != end or holds_breaker(end, seen[: len(seen) - n], dry):
                continue
            if 0 <= token < NUM_TOKENS and token not in dry.breakers:
                longest[token] = max(longest.get(token, 0), n)
    return longest


def edited_by(backend, histories, settings):
    """Zero logits after the penalties; the reference has them from its own function."""
    logits = np.zeros((len(histories), NUM_TOKENS), np.float32)
    rows = [{"prompt": h[: len(h) // 2], "output": h[len(h) // 2 :]} for h in histories]
    batch = replace(sample_batch(rows), dry=dry_batch(settings, NUM_TOKENS))
    if backend is None:
        from headrace.kernels.reference.sampling import edit_logits

        return np.stack([edit_logits(logits[r], batch, r) for r in range(len(rows))])
    backend.sample(logits, batch)  # edits its logits in place
    return logits


@given(st.lists(st.tuples(histories, st.one_of(drys, st.none())), min_size=1, max_size=5))
def test_dry_penalises_what_goes_on_with_the_longest_repetition(rows):
    wanted = np.zeros((len(rows), NUM_TOKENS), np.float32)
    for row, (history, dry) in enumerate(rows):
        for token, n in (plain_dry(history, dry) if dry else {}).items():
            wanted[row, token] = -dry.multiplier * dry.base ** (n - dry.allowed_length)
    given_histories, settings = zip(*rows, strict=True)
    specified = edited_by(None, given_histories, settings)
    np.testing.assert_allclose(specified, wanted, rtol=1e-6)
    for isa in ISAS:
        np.testing.assert_array_equal(edited_by(cpu(isa), given_histories, settings), specified)


@pytest.mark.parametrize("isa", ISAS)
def test_dry_of_an_endless_repetition_stays_finite(isa):
    settings = [Dry(multiplier=5.0, base=100.0, allowed_length=1, window=2**31 - 1)]
    edited = edited_by(cpu(isa), [[3] * 300], settings)
    assert edited[0].tolist() == [0, 0, 0, np.float32(-1e30), 0, 0]
    np.testing.assert_array_equal(edited, edited_by(None, [[3] * 300], settings))
