"""Chunks, losses and the parser of the perplexity comparison."""

import math

import llama_perplexity
import numpy as np
import pytest
from perplexity import chunks, merged, negative_log_probabilities, summarize

OUTPUT = """
perplexity: calculating perplexity over 100 chunks, n_ctx=512, batch_size=2048, n_seq=4
[1]23.1,[2]24.2,
Final estimate: PPL = 24.1234 +/- 0.53210
"""


def test_only_whole_chunks_each_with_bos_first() -> None:
    assert chunks(list(range(7)), 3, None) == [[0, 1, 2], [3, 4, 5]]
    assert chunks(list(range(7)), 3, 99) == [[99, 1, 2], [99, 4, 5]]


def test_losses_are_those_of_a_softmax_in_double_precision() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(scale=8, size=(70, 33)).astype(np.float32)
    targets = rng.integers(0, 33, 70)
    exact = logits.astype(np.float64)
    wanted = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(70), targets]
    np.testing.assert_allclose(negative_log_probabilities(logits, targets), wanted, atol=1e-5)


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[3e4, 0.0]], np.float32)
    assert negative_log_probabilities(logits, np.array([0]))[0] == 0.0
    assert negative_log_probabilities(logits, np.array([1]))[0] == 3e4


def test_perplexity_is_the_exponential_of_the_mean_loss_over_all_chunks() -> None:
    score = summarize([np.array([math.log(2)] * 3), np.array([math.log(8)])])
    assert score.chunks == 2
    assert score.perplexity == pytest.approx(2 ** (6 / 4))
    assert score.standard_error > 0


def test_the_estimate_is_read_from_the_output() -> None:
    found = llama_perplexity.parse(OUTPUT)
    assert (found.perplexity, found.standard_error, found.chunks) == (24.1234, 0.5321, 100)


@pytest.mark.parametrize("output", ["", "Final estimate: PPL = 1.0 +/- 0.1", "over 3 chunks"])
def test_an_output_without_an_estimate_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="no estimate"):
        llama_perplexity.parse(output)


def test_a_file_measured_again_replaces_its_figures() -> None:
    first, other, second = ({"file": name, "n": n} for name, n in (("a", 1), ("b", 2), ("a", 3)))
    assert merged([], first) == [first]
    assert merged([first, other], second) == [other, second]
