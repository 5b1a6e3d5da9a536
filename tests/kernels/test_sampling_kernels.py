"""Sampling kernels against the reference, and against themselves."""

import numpy as np
import pytest
from tests.support.op_run import ISAS, cpu, reference
from tests.support.sample_batches import allow, sample_batch

from headrace.core.errors import KernelError
from headrace.kernels.reference import sampling
from headrace.kernels.reference.noise import LARGEST_NOISE, gumbel, mix32, row_key, splitmix64

isas = pytest.mark.parametrize("isa", ISAS)

VOCABS = [1, 7, 64, 1000, 49_152]


def logits_of(num_rows, vocab_size, seed=0, scale=4.0):
    """Peaked like a model's: a few large values over a broad base."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((num_rows, vocab_size)) * scale / 2
    logits += rng.standard_exponential((num_rows, vocab_size)) * scale / 4
    return logits.astype(np.float32)


def draw(backend, logits, batch):
    return backend.sample(logits.copy(), batch)


def top_two_gap(logits, batch, row, token):
    """How far the reference's choice is ahead of `token` (perturbed), or inf if it was cut off."""
    edited = sampling.edit_logits(logits[row], batch, row)
    inverse = np.float32(1) / batch.temperature[row]
    scaled = (edited - edited.max()) * inverse
    key = row_key(int(batch.seeds[row]), int(batch.output_positions[row]))
    perturbed = scaled + gumbel(key, np.arange(len(scaled), dtype=np.uint32))
    best = sampling.sample_row(logits[row], batch, row)
    return float(perturbed[best] - perturbed[token])


def assert_same_draws(actual, logits, batch):
    """Equal to the reference, but for draws that the last places of float32 decide."""
    expected = sampling.sample(logits, batch)
    np.testing.assert_array_equal(actual.is_finite, expected.is_finite)
    different = np.flatnonzero(actual.token_ids != expected.token_ids)
    for row in different:
        # The noise and the scaled logit each carry a few roundoffs of numbers up to about 30.
        assert abs(top_two_gap(logits, batch, row, actual.token_ids[row])) < 1e-4
    assert len(different) <= max(1, len(logits) // 50)
    return expected


GRID = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "tiny temperature": {"temperature": 1e-40},
    "top_k 1": {"top_k": 1},
    "top_k": {"top_k": 20},
    "top_k beyond": {"top_k": 100_000},
    "top_p": {"top_p": 0.9},
    "top_p small": {"top_p": 1e-6},
    "top_p near one": {"top_p": 0.9999},
    "min_p": {"min_p": 0.05},
    "min_p one": {"min_p": 1.0},
    "all": {"top_k": 50, "top_p": 0.8, "min_p": 0.02, "temperature": 1.5},
    "typical": {"typical_p": 0.5},
    "typical small": {"typical_p": 0.01, "temperature": 1.5},
    "sigma": {"top_n_sigma": 1.0, "temperature": 2.0},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.02},
    "xtc by chance": {"xtc_probability": 0.5, "xtc_threshold": 0.001, "top_k": 40},
    "narrow": {"typical_p": 0.8, "top_n_sigma": 3.0, "xtc_probability": 0.7, "top_p": 0.95},
    "penalties": {
        "prompt": [0, 1, 2, 3],
        "output": [2, 2, 4, 5, 2],
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.3,
    },
    "negative penalties": {
        "output": [0, 0, 0, 5],
        "presence_penalty": -1.5,
        "frequency_penalty": -1.0,
        "repetition_penalty": 0.8,
        "temperature": 0.0,
    },
    "bias": {"bias": {0: 5.0, 3: -100.0, 5: float("-inf")}, "top_p": 0.95},
    "outside the vocabulary": {"prompt": [-1, 500_000], "repetition_penalty": 2.0},
}


@isas
@pytest.mark.parametrize("vocab_size", VOCABS)
@pytest.mark.parametrize("settings", GRID.values(), ids=GRID.keys())
def test_against_the_reference(isa, vocab_size, settings):
    num_rows = 40 if vocab_size <= 1000 else 6
    bias = {t: v for t, v in settings.get("bias", {}).items() if t < vocab_size}
    logits = logits_of(num_rows, vocab_size)
    batch = sample_batch(
        [
            {**settings, "bias": bias, "seeds": 77 + r, "output_positions": 3 * r}
            for r in range(num_rows)
        ]
    )
    assert_same_draws(draw(cpu(isa), logits, batch), logits, batch)


@isas
def test_ties_go_to_the_lower_id(isa):
    logits = np.zeros((3, 300), np.float32)
    logits[0, [70, 200, 299]] = 2.0
    logits[1, 5:] = -1.0
    batch = sample_batch([{"temperature": 0.0, "num_logprobs": 4}] * 3)
    output = draw(cpu(isa), logits, batch)
    assert output.token_ids.tolist() == [70, 0, 0]
    assert output.top_ids[0].tolist() == [70, 200, 299, 0]
    assert output.top_ids[2].tolist() == [0, 1, 2, 3]
    # Cut at three among equals: the three lowest ids, however the noise falls.
    rows = [{"top_k": 3, "seeds": seed} for seed in range(200)]
    drawn = draw(cpu(isa), np.zeros((200, 300), np.float32), sample_batch(rows)).token_ids
    assert set(drawn.tolist()) == {0, 1, 2}
    rows = [{"top_p": 0.01, "seeds": seed} for seed in range(200)]
    drawn = draw(cpu(isa), np.zeros((200, 300), np.float32), sample_batch(rows)).token_ids
    assert set(drawn.tolist()) == {0, 1, 2}


@isas
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}])
def test_faulty_rows_give_no_token_and_spare_the_others(isa, settings):
    logits = logits_of(6, 500)
    logits[1, 499] = np.nan
    logits[2, 0] = np.inf
    logits[3] = -np.inf
    logits[4, 1:] = -np.inf
    batch = sample_batch([settings] * 6)
    output = draw(cpu(isa), logits, batch)
    assert output.is_finite.tolist() == [True, False, False, False, True, True]
    assert output.token_ids[[1, 2, 3]].tolist() == [-1, -1, -1]
    assert output.token_ids[4] == 0
    alone = draw(cpu(isa), logits[[0, 5]], sample_batch([settings] * 2))
    np.testing.assert_array_equal(output.token_ids[[0, 5]], alone.token_ids)


@isas
def test_a_row_whose_tokens_are_all_masked_gives_none(isa):
    batch = sample_batch([{"bias": {t: float("-inf") for t in range(7)}}, {}])
    output = draw(cpu(isa), logits_of(2, 7), batch)
    assert output.token_ids[0] == -1
    assert output.token_ids[1] >= 0


@isas
@pytest.mark.parametrize("vocab_size", [7, 31, 32, 33, 1000])
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_p": 0.9, "num_logprobs": 2}])
def test_only_allowed_tokens_are_drawn(isa, vocab_size, settings):
    rng = np.random.default_rng(5)
    tokens = [rng.choice(vocab_size, size=3, replace=False).tolist() for _ in range(30)]
    logits = logits_of(30, vocab_size)
    batch = sample_batch(
        [{**settings, "seeds": r} for r in range(30)], allow(30, vocab_size, tokens)
    )
    output = draw(cpu(isa), logits, batch)
    for token, ids in zip(output.token_ids.tolist(), tokens, strict=True):
        assert token in ids
    assert_same_draws(output, logits, batch)


@isas
@pytest.mark.parametrize("vocab_size", VOCABS)
def test_logprobs_are_of_the_raw_distribution(isa, vocab_size):
    logits = logits_of(8, vocab_size)
    logits[3] = np.round(logits[3])  # many equals
    logits[4, vocab_size // 2 :] = -np.inf
    rows = [
        {"num_logprobs": wanted, "temperature": temperature, "bias": {0: 3.0}, "seeds": 9}
        for wanted, temperature in zip(
            [-1, 0, 1, 5, 20, 20, 3, 7], [0, 1, 0, 1, 2, 0, 1, 1], strict=True
        )
    ]
    batch = sample_batch(rows)
    actual = draw(cpu(isa), logits, batch)
    expected = assert_same_draws(actual, logits, batch)
    same = actual.token_ids == expected.token_ids
    np.testing.assert_array_equal(actual.ranks[same], expected.ranks[same])
    np.testing.assert_array_equal(actual.top_ids, expected.top_ids)
    # The sum of exponentials: V positive terms of a few roundoffs each, in lanes of at most 512.
    np.testing.assert_allclose(actual.logprobs[same], expected.logprobs[same], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(actual.top_logprobs, expected.top_logprobs, rtol=1e-6, atol=1e-5)


@isas
@pytest.mark.parametrize("settings", GRID.values(), ids=GRID.keys())
def test_probabilities_after_sampling_are_of_what_could_be_drawn(isa, settings):
    vocab_size = 1000
    logits = logits_of(12, vocab_size)
    rows = [
        {**settings, "seeds": r, "num_logprobs": r % 4 * 5, "post_sampling": r != 3}
        for r in range(12)
    ]
    batch = sample_batch(rows)
    actual = draw(cpu(isa), logits, batch)
    expected = assert_same_draws(actual, logits, batch)
    same = actual.token_ids == expected.token_ids
    np.testing.assert_array_equal(actual.ranks[same], expected.ranks[same])
    np.testing.assert_array_equal(actual.top_ids, expected.top_ids)
    np.testing.assert_allclose(actual.logprobs[same], expected.logprobs[same], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(actual.top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)
    if settings.get("temperature") == 0.0:
        assert (actual.logprobs[[0, 1]] == 0.0).all()


@isas
@pytest.mark.parametrize("settings", GRID.values(), ids=GRID.keys())
def test_a_draw_does_not_depend_on_its_company_nor_on_threads(isa, settings):
    vocab_size = 70_000  # one row of this many is shared by threads
    logits = logits_of(4, vocab_size)
    rows = [{**settings, "seeds": r, "num_logprobs": 5} for r in range(4)]
    together = draw(cpu(isa, 2), logits, sample_batch(rows))
    for threads in (1, 2, 3):
        for r in (0, 3):
            alone = draw(cpu(isa, threads), logits[r : r + 1], sample_batch(rows[r : r + 1]))
            assert alone.token_ids[0] == together.token_ids[r]
            assert alone.logprobs[0] == together.logprobs[r]
            assert alone.ranks[0] == together.ranks[r]
            np.testing.assert_array_equal(alone.top_ids[0], together.top_ids[r])
            np.testing.assert_array_equal(alone.top_logprobs[0], together.top_logprobs[r])


@isas
def test_seed_and_position_and_nothing_else_decide_the_noise(isa):
    logits = logits_of(1, 1000).repeat(64, axis=0)
    seeds = [0, 1, 2**63 - 1, 5]
    rows = [
        {"seeds": seed, "output_positions": position, "temperature": 2.0}
        for seed in seeds
        for position in range(16)
    ]
    backend = cpu(isa)
    first = draw(backend, logits, sample_batch(rows)).token_ids
    order = np.random.default_rng(0).permutation(64)
    again = draw(backend, logits, sample_batch([rows[i] for i in order])).token_ids
    np.testing.assert_array_equal(again, first[order])
    assert len(set(first.tolist())) > 20


def test_the_noise_stays_what_it_was_for_ever():
    # These numbers are a promise: seeds that users keep must go on meaning the same.
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # as published with the generator
    assert row_key(0, 0) == 0xA706DD2F4D197E6F
    assert mix32(np.array([1, 2, 3], np.uint32)).tolist() == [0x688990C0, 0xD1132181, 0x53F1E9DD]
    noise = gumbel(row_key(42, 7), np.arange(4, dtype=np.uint32))
    np.testing.assert_allclose(noise, [0.8021062, 2.4018192, 2.3437583, -0.44030106], rtol=1e-6)
    far = gumbel(row_key(2**63 - 1, 10**6), np.array([49_151, 262_143], np.uint32))
    np.testing.assert_allclose(far, [0.55798483, 0.48864248], rtol=1e-6)


def test_no_noise_exceeds_its_bound():
    extremes = -np.log(-np.log((np.array([0, 2**23 - 1]) + 0.5) * 2.0**-23))
    assert abs(extremes).max() < LARGEST_NOISE


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.95}])
def test_draws_have_the_distribution_that_the_parameters_say(settings):
    """Chi-square over 20,000 draws with fixed seeds; the bound is the 99.99 % quantile."""
    num_draws, vocab_size = 20_000, 12
    logits = logits_of(1, vocab_size, seed=3, scale=2.0)
    rows = [{**settings, "seeds": 123, "output_positions": i} for i in range(num_draws)]
    drawn = draw(cpu(ISAS[-1]), logits.repeat(num_draws, axis=0), sample_batch(rows)).token_ids
    scaled = (logits[0] - logits[0].max()) / np.float32(settings.get("temperature", 1.0))
    kept = sampling.kept_tokens(
        scaled, sampling.Truncation(settings.get("top_k", 0), settings.get("top_p", 1.0), 0.0)
    )
    weights = np.exp(scaled[kept].astype(np.float64))
    expected = num_draws * weights / weights.sum()
    observed = np.bincount(drawn, minlength=vocab_size)
    assert observed.sum() == observed[kept].sum()
    statistic = float(((observed[kept] - expected) ** 2 / expected).sum())
    freedom = len(kept) - 1
    assert freedom > 0
    # Wilson and Hilferty's approximation of the quantile; 3.719 is that of the normal distribution.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound


def test_truncation_keeps_what_its_definition_says():
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = int(rng.integers(1, 40))
        scaled = np.round(rng.standard_normal(size) * 2, 1).astype(np.float32)
        scaled -= scaled.max()
        top_k, top_p = int(rng.integers(0, 45)), float(rng.uniform(0.01, 1.0))
        min_p = float(rng.uniform(0.0, 0.5))
        kept = sampling.kept_tokens(scaled, sampling.Truncation(top_k, top_p, min_p))
        weights = np.exp(scaled.astype(np.float64))
        order = sorted(range(size), key=lambda t: (-scaled[t], t))
        first = order[:top_k] if top_k else order
        needed = top_p * weights[first].sum()
        length = next(
            n for n in range(1, len(first) + 1) if weights[first[:n]].sum() >= needed * (1 - 1e-12)
        )
        wanted = [t for t in first[:length] if scaled[t] >= np.float32(np.log(min_p))]
        assert kept.tolist() == sorted(wanted)


def test_both_back_ends_agree_on_an_empty_batch():
    for backend in (reference(), cpu(ISAS[-1])):
        output = backend.sample(np.zeros((0, 10), np.float32), sample_batch([]))
        assert output.token_ids.shape == (0,)


@isas
def test_a_bound_draw_reads_its_arrays_anew_and_takes_other_masks(isa):
    backend = cpu(isa)
    batch = sample_batch([{"temperature": 0.8, "seed": 5}, {"temperature": 0.0}])
    logits = logits_of(2, 1000)
    work = logits.copy()
    bound = backend.bind_sample(work, batch)
    for position in range(4):
        batch.output_positions[:] = position
        work[:] = logits + np.float32(position)
        expected = draw(backend, work, batch)
        assert bound(None) == expected.token_ids.tolist() == bound.output.token_ids.tolist()
    work[:] = logits
    assert bound(allow(2, 1000, [[3], [4, 5]]))[0] == 3
    batch.slots[0] = 9
    with pytest.raises(KernelError, match="history"):
        bound(None)


@isas
@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 70_000])
def test_given_tokens_are_reported_as_drawn_ones_are(isa, vocab_size):
    logits = logits_of(9, vocab_size)
    backend = cpu(isa, 2)
    wanted = np.array([0, 1, 5, 20, 0, 3, 3, 3, 2], np.int32)
    rows = [{"num_logprobs": count, "seeds": r} for r, count in enumerate(wanted.tolist())]
    drawn = draw(backend, logits, sample_batch(rows))
    before = logits.copy()
    scored = backend.score(logits, drawn.token_ids, wanted)
    np.testing.assert_array_equal(logits, before)
    for name in ("token_ids", "is_finite", "logprobs", "ranks", "top_ids", "top_logprobs"):
        np.testing.assert_array_equal(getattr(scored, name), getattr(drawn, name))
    tokens = (np.arange(9, dtype=np.int32) * 37) % vocab_size
    scored, expected = (
        backend.score(logits, tokens, wanted),
        reference().score(logits, tokens, wanted),
    )
    np.testing.assert_array_equal(scored.ranks, expected.ranks)
    np.testing.assert_array_equal(scored.top_ids, expected.top_ids)
    np.testing.assert_allclose(scored.logprobs, expected.logprobs, rtol=1e-6, atol=1e-5)


@isas
def test_rows_that_tell_nothing_of_a_token_are_marked(isa):
    logits = logits_of(4, 100)
    logits[1, 50] = np.nan
    logits[2] = -np.inf
    logits[3, 7] = -np.inf
    tokens, wanted = np.full(4, 7, np.int32), np.zeros(4, np.int32)
    for backend in (cpu(isa), reference()):
        scored = backend.score(logits, tokens, wanted)
        assert scored.is_finite.tolist() == [True, False, False, True]
        assert scored.logprobs[3] == -np.inf
    for bad in (-1, 100):
        with pytest.raises(KernelError, match="vocabulary"):
            cpu(isa).score(logits, np.full(4, bad, np.int32), wanted)
