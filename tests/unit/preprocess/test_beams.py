import pytest

from headrace.api.chat import ChatRequest
from headrace.api.decode import convert
from headrace.core.beams import BeamSearch, EarlyStopping
from headrace.core.errors import BadRequestError
from headrace.core.sampling import SamplingParams, ThinkingLimit
from headrace.preprocess.beams import for_search, read_beams

MESSAGES = [{"role": "user", "content": "x"}]


def fields(**values) -> ChatRequest:
    return convert({"messages": MESSAGES, **values}, ChatRequest)


@pytest.mark.parametrize(
    ("values", "search"),
    [
        ({}, None),
        ({"use_beam_search": False}, None),
        ({"beam_width": 1}, None),
        ({"early_stopping": False, "length_penalty": 1.0}, None),
        ({"use_beam_search": True}, BeamSearch(width=1)),
        ({"use_beam_search": True, "n": 3}, BeamSearch(width=3)),
        ({"beam_width": 4, "n": 2}, BeamSearch(width=4)),
        ({"num_beams": 4, "beam_width": 4}, BeamSearch(width=4)),
        (
            {"num_beams": 16, "length_penalty": -2, "early_stopping": True},
            BeamSearch(width=16, length_penalty=-2.0, early_stopping=EarlyStopping.FULL),
        ),
        (
            {"num_beams": 2, "early_stopping": "never"},
            BeamSearch(width=2, early_stopping=EarlyStopping.NEVER),
        ),
    ],
)
def test_what_is_asked_for(values, search):
    assert read_beams(fields(**values)) == search


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"beam_width": 17}, "beam_width"),
        ({"num_beams": 17}, "num_beams"),
        ({"use_beam_search": True, "n": 17}, "n"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "num_beams": 3}, "num_beams"),
        ({"beam_width": 2, "use_beam_search": False}, "use_beam_search"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty"),
    ],
)
def test_faults_are_named(values, param):
    with pytest.raises(BadRequestError) as caught:
        read_beams(fields(**values))
    assert caught.value.param == param


def test_not_a_number_is_no_length_penalty():
    request = convert(
        {"messages": MESSAGES, "length_penalty": float("nan"), "num_beams": 2}, ChatRequest
    )
    with pytest.raises(BadRequestError, match="length_penalty"):
        read_beams(request)


@pytest.mark.parametrize(
    ("values", "params", "has_grammar", "param"),
    [
        ({"presence_penalty": 1}, {}, False, "presence_penalty"),
        ({"frequency_penalty": 1}, {}, False, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, {}, False, "repetition_penalty"),
        ({"logit_bias": {"3": 1}}, {}, False, "logit_bias"),
        ({}, {"stop": ("x",)}, False, "stop"),
        ({}, {}, True, "response_format"),
        (
            {},
            {"thinking": ThinkingLimit(max_tokens=1, end_ids=(1,), forced_ids=(1,))},
            False,
            "thinking_budget",
        ),
        ({"prior_output_ids": [1]}, {}, False, "prior_output_ids"),
        ({}, {"stop_token_ids": tuple(range(15))}, False, "stop_token_ids"),
    ],
)
def test_what_a_search_does_not_weigh_is_refused(values, params, has_grammar, param):
    with pytest.raises(BadRequestError) as caught:
        for_search(fields(**values), SamplingParams(**params), 2, has_grammar=has_grammar)
    assert caught.value.param == param


def test_nothing_is_drawn_and_the_models_own_defaults_are_left_out():
    params = SamplingParams(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.3, max_tokens=9, seed=4
    )
    found = for_search(fields(logit_bias={}), params, 1, has_grammar=False)
    assert found == SamplingParams(temperature=0.0, max_tokens=9, seed=4)
