import math

import msgspec
import pytest

from headrace.api.completions import CompletionRequest
from headrace.core.errors import BadRequestError
from headrace.core.sampling import SamplingParams
from headrace.preprocess.generation_config import SamplingDefaults, read_sampling_defaults
from headrace.preprocess.params import Bounds, check_token_ids, resolve_params

BOUNDS = Bounds(vocab_size=1000, default_max_tokens=50, room=200)


def resolve(*, defaults=None, max_tokens=None, logprobs=None, bounds=BOUNDS, **fields):
    return resolve_params(
        CompletionRequest(prompt="x", **fields),
        bounds=bounds,
        defaults=defaults or SamplingDefaults(),
        max_tokens=max_tokens,
        logprobs=logprobs,
        draw_seed=lambda: 11,
    )


def test_a_request_that_says_nothing_gets_the_defaults_of_the_api():
    assert resolve() == SamplingParams(seed=11, max_tokens=50)


def test_the_model_s_defaults_lie_between():
    defaults = SamplingDefaults(
        temperature=0.6, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1
    )
    params = resolve(defaults=defaults, temperature=0.0, top_k=-1)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 0.9, 0)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.1)


def test_everything_that_is_asked_for_arrives():
    params = resolve(
        temperature=0.5, top_p=0.8, top_k=7, min_p=0.2, presence_penalty=-2.0, frequency_penalty=2.0,
        repetition_penalty=1.5, logit_bias={"3": -100, "999": 100.0}, seed=5, stop=["a", "b", "a"],
        stop_token_ids=[4, 4, 999], min_tokens=3, ignore_eos=True, max_tokens=9, logprobs=20,
    )  # fmt: skip
    assert params == SamplingParams(
        temperature=0.5, top_p=0.8, top_k=7, min_p=0.2, presence_penalty=-2.0, frequency_penalty=2.0,
        repetition_penalty=1.5, logit_bias={3: -100.0, 999: 100.0}, seed=5, stop=("a", "b"),
        stop_token_ids=(4, 999), min_tokens=3, ignore_eos=True, max_tokens=9, logprobs=20,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1.0}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"typical_p": 1.5}, "typical_p"),
        ({"top_n_sigma": -2.0}, "top_n_sigma"),
        ({"xtc_probability": math.nan}, "xtc_probability"),
        ({"xtc_threshold": -0.1}, "xtc_threshold"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"logit_bias": {"foo": 1}}, "logit_bias.foo"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias.1_0"),
        ({"logit_bias": {" 1": 1}}, "logit_bias. 1"),
        ({"logit_bias": {"٣": 1}}, "logit_bias.٣"),
        ({"logit_bias": {"1000": 1}}, "logit_bias.1000"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias." + "9" * 40),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"1": math.nan}}, "logit_bias.1"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias.01"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["x" * 1025]}, "stop[0]"),
        ({"stop": [str(i) for i in range(17)]}, "stop"),
        ({"stop_token_ids": [1000]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [0, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": list(range(257))}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 10, "max_tokens": 9}, "min_tokens"),
        ({"min_tokens": 201}, "min_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_a_bad_value_is_refused_by_name(fields, param):
    with pytest.raises(BadRequestError) as caught:
        resolve(**fields)
    assert caught.value.param == param
    assert str(caught.value).startswith(f"'{param}': ")
    assert str(caught.value).endswith(".")


def test_output_is_cut_to_the_room():
    assert resolve(max_tokens=500).max_tokens == 200
    assert resolve(bounds=Bounds(vocab_size=9, default_max_tokens=50, room=1)).max_tokens == 1


def test_a_minimum_above_the_default_maximum_raises_it():
    params = resolve(min_tokens=60)
    assert (params.min_tokens, params.max_tokens) == (60, 60)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 12345])
def test_every_seed_is_resolved_to_a_valid_one(seed):
    params = resolve(seed=seed)
    assert params.seed == seed % 2**63
    # What the engine receives must decode: the bounds of the struct hold.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_top_p_of_zero_still_keeps_one_token():
    params = resolve(top_p=0.0)
    assert 0.0 < params.top_p < 1e-9
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_one_stop_string_may_stand_alone():
    assert resolve(stop="\n").stop == ("\n",)
    assert resolve(stop=[]).stop == ()


def test_token_ids_name_the_first_fault():
    check_token_ids("prompt", [0, 999], 1000)
    check_token_ids("prompt", [], 1000)
    with pytest.raises(BadRequestError, match=r"'prompt\[2\]': token id 1000 is not"):
        check_token_ids("prompt", [1, 2, 1000, -1], 1000)


def test_defaults_are_read_from_a_model_directory(tmp_path):
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.05}')
    assert read_sampling_defaults(tmp_path) == SamplingDefaults(
        temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.05
    )
    # What no request could ask for does not become a default.
    path.write_text('{"temperature": -1, "top_p": 7, "top_k": true, "min_p": "x"}')
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    assert read_sampling_defaults(path) == SamplingDefaults()


def test_a_short_name_knows_how_its_model_is_best_sampled(tmp_path):
    file = tmp_path / "model.gguf"
    assert read_sampling_defaults(file, "smollm2-135m") == SamplingDefaults(
        temperature=0.2, top_p=0.9
    )
    assert read_sampling_defaults(file, "gemma-3-270m").top_k == 64
    assert read_sampling_defaults(file, "./smollm2-135m") == SamplingDefaults()
