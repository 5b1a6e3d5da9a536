import pytest
from msgspec import structs

from headrace.core.errors import BadRequestError
from headrace.core.sampling import SamplingParams, ThinkingLimit
from headrace.preprocess.answers import with_limit

LIMIT = ThinkingLimit(max_tokens=3, end_ids=(8,), forced_ids=(7, 8))


def test_an_end_that_is_forced_may_not_be_forbidden():
    for params in (
        SamplingParams(max_tokens=9),
        SamplingParams(max_tokens=9, stop_token_ids=(8,)),
        SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=(5,)),
    ):
        assert with_limit(params, LIMIT) == structs.replace(params, thinking=LIMIT)
    with pytest.raises(BadRequestError) as caught:
        with_limit(SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=(8,)), LIMIT)
    assert caught.value.param == "stop_token_ids"
