"""Values that back ends tell: whatever they are, reading them does not fail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.backends import reading
from headrace.fleet.gateway.progress import usage_of

ANY = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.none(), max_size=1)
)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), True, "1", -1])
def test_what_is_no_number_is_as_good_as_absent(value):
    assert reading.share(value) is None
    assert reading.count(value) is None


@given(ANY | st.just(10**400), ANY, ANY, ANY)
def test_usage_is_whole_and_bounded_whatever_is_told(prompt, output, cached, read):
    told = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "cache_read_input_tokens": read,
    }
    usage = usage_of(told)
    for count in (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens):
        assert type(count) is int
        assert 0 <= count < 2**33
