"""Other servers' names of fields: one meaning, never two values."""

import msgspec
import pytest
from tests.support.in_process import InProcess

from headrace.api.aliases import ALIASES, AliasFields, without_aliases
from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.api.decode import convert
from headrace.core.errors import BadRequestError

VALUES = {
    "max_tokens": 7, "repetition_penalty": 1.5, "n": 2, "logprobs": 3, "min_tokens": 4, "seed": -5,
    "include_stop_str_in_output": True,
}  # fmt: skip
PAIRS = [pair for names in ALIASES.values() for pair in names.items()]


def text(**fields):
    return without_aliases(convert({"prompt": "x", **fields}, CompletionRequest))


@pytest.mark.parametrize(("alias", "field"), PAIRS)
def test_an_alias_is_its_field(alias, field):
    value = VALUES[field]
    assert text(**{alias: value}) == text(**{alias: value, field: value}) == text(**{field: value})
    other = not value if isinstance(value, bool) else value + 1
    with pytest.raises(BadRequestError) as caught:
        text(**{alias: value, field: other})
    assert caught.value.param == alias
    assert f"'{field}'" in str(caught.value)


@pytest.mark.parametrize(("alias", "field"), PAIRS)
def test_an_alias_takes_what_its_field_takes(alias, field):
    for value in ("7", [], {}, -3 if field != "seed" else 0.5):
        with pytest.raises(BadRequestError) as caught:
            text(**{alias: value})
        assert caught.value.param == alias


def test_every_alias_is_in_the_table_and_in_a_request():
    names = {alias for alias, _ in PAIRS}
    assert {*AliasFields.__struct_fields__} == names - {"n_probs"}
    assert names | {field for _, field in PAIRS} <= {*CompletionRequest.__struct_fields__}


def test_two_aliases_of_one_field_must_agree():
    assert text(n_predict=3, max_new_tokens=3).max_tokens == 3
    with pytest.raises(BadRequestError, match="'max_new_tokens' is another name of 'n_predict'"):
        text(n_predict=3, max_new_tokens=4)


def test_values_that_mean_something_else_here():
    assert text(n_predict=-1).max_tokens == 2**31 - 1
    assert text(n_predict=0).max_tokens == 0
    assert text(n_probs=0).logprobs is None
    assert text(n_probs=None, seed=1).seed == 1


def test_the_bounds_are_those_of_the_route():
    chat = convert({"messages": [{"role": "user", "content": "x"}], "n_predict": 0}, ChatRequest)
    with pytest.raises(BadRequestError, match="'n_predict': expected a whole number >= 1"):
        without_aliases(chat)


async def test_over_http_they_are_known_and_described(tmp_path):
    async with InProcess(tmp_path, strict=True) as app:
        body = {"model": "fake", "prompt": "hi", "n_predict": 3, "sampling_seed": 1}
        answer = await app.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert "x-headrace-ignored-fields" not in answer.headers
        assert answer.json()["usage"]["completion_tokens"] == 3
        answer = await app.http.post("/v1/completions", json={**body, "max_tokens": 4})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n_predict")
        schemas = (await app.http.get("/openapi.json")).json()["components"]["schemas"]
        for kind in ("ChatRequest", "CompletionRequest", "MessagesRequest", "ResponsesRequest"):
            told = schemas[kind]["properties"]["n_predict"]
            assert "max_tokens" in told["description"]
            assert told["anyOf"][0]["minimum"] == -1


def test_a_request_without_them_is_left_as_it_is():
    request = msgspec.convert({"prompt": "x", "max_tokens": 1}, CompletionRequest)
    assert without_aliases(request) is request
