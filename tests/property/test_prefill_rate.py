"""The measured prefill rate of a serial replica, whatever prompts it gets and in whatever order they are told."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.latency import Latency

RATE, MOST_OF_A_STEP = 2000.0, 4

#: Uncached tokens: of what was cached nearly whole, and of what was not.
TOKENS = st.integers(0, 63) | st.integers(64, 8000)
#: Seconds from the last prompt's arrival to this one's, and its tokens.
PROMPT = st.tuples(st.floats(0.0, 5.0), TOKENS)
#: Prompts that come out of one step, in the order in which they are told, and seconds that it takes beside computing.
STEP = st.tuples(
    st.lists(PROMPT, min_size=1, max_size=MOST_OF_A_STEP).flatmap(
        lambda prompts: st.tuples(st.just(prompts), st.permutations(range(len(prompts))))
    ),
    st.floats(0.0, 0.05),
)


@given(st.lists(STEP, min_size=1, max_size=30))
def test_it_is_never_far_above_the_real_one(
    steps: list[tuple[tuple[list[tuple[float, int]], list[int]], float]],
) -> None:
    latency, free, arrival, has_long = Latency(), 0.0, 0.0, False
    for (prompts, order), beside in steps:
        sent = []
        for gap, _ in prompts:
            arrival += gap
            sent.append(arrival)
        free = max(free, arrival) + beside + sum(tokens for _, tokens in prompts) / RATE
        for place in order:
            latency.note_prefill(sent[place], free, prompts[place][1])
        has_long = has_long or any(tokens >= 64 for _, tokens in prompts)
    assert (latency.prefill_rate is not None) == has_long
    # Prompts of one step are forgotten one by one, and the first of them has its time.
    assert (latency.prefill_rate or 0.0) <= 1.0001 * RATE / 0.95 ** (MOST_OF_A_STEP - 1)


@given(
    st.integers(64, 8000),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 63)), max_size=50),
)
def test_short_prompts_while_a_long_one_is_computed_change_nothing(
    tokens: int, shorts: list[tuple[float, int]]
) -> None:
    latency, seconds = Latency(), tokens / RATE
    for part, few in sorted(shorts):
        latency.note_prefill(0.0, part * seconds, few)
    latency.note_prefill(0.0, seconds, tokens)
    assert latency.prefill_rate is not None
    assert abs(latency.prefill_rate / RATE - 1) < 1e-6
