"""Depth is told exactly, whatever strings hold, and without decoding."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.depth import check_depth
from headrace.core.errors import BadRequestError

VALUES = st.recursive(
    st.none() | st.text('[]{}"\\x', max_size=6) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\', max_size=3), inner)
    ),
    max_leaves=20,
)


def depth(value):
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(0, 6))
def test_exactly_what_is_deeper_is_refused(value, limit):
    body = json.dumps(value).encode()
    if depth(value) > limit:
        with pytest.raises(BadRequestError, match=f"more than {limit}"):
            check_depth(body, limit)
    else:
        check_depth(body, limit)


def test_wide_is_not_deep():
    check_depth(json.dumps([[{}]] * 1000).encode(), 3)
