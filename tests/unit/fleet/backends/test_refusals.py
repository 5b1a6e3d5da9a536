import json

import pytest

from headrace.fleet.backends.refusals import passed_on, refusal, retry_after_of

OWN = b'{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"x"}}'


def test_an_object_of_openais_shape_stays() -> None:
    found = passed_on(400, {}, OWN)
    assert (found.status, found.body, found.is_retryable) == (400, OWN, False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"object":"error","message":"no","code":400}', "no"),
        (b'{"detail":"not this"}', "not this"),
        (b'{"error":"Model is overloaded","error_type":"overloaded"}', "Model is overloaded"),
        (b"plain words", "plain words"),
        (b"<html>nginx</html>", "The server answered with status 400."),
        (b"", "The server answered with status 400."),
        (b'{"error":{"message":7}}', "The server answered with status 400."),
    ],
)
def test_other_shapes_are_translated(body: bytes, message: str) -> None:
    found = json.loads(passed_on(400, {}, body).body)
    assert found["error"]["message"] == message
    assert found["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("status", "told", "is_overload", "is_retryable"),
    [
        (400, 400, False, False),
        (401, 401, False, False),
        (408, 408, False, True),
        (422, 400, False, False),
        (424, 502, False, True),
        (429, 429, True, True),
        (500, 500, False, True),
        (503, 503, True, True),
        (529, 503, True, True),
    ],
)
def test_statuses(status: int, told: int, is_overload: bool, is_retryable: bool) -> None:
    found = refusal(status, "m")
    assert (found.status, found.is_overload) == (told, is_overload)
    assert found.is_retryable == is_retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "999999"}, 3600.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_of(headers, now=10.0) == seconds


def test_a_date_without_a_clock_is_not_known() -> None:
    assert retry_after_of({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}) is None


def test_messages_have_a_bound() -> None:
    assert len(refusal(400, "x" * 10_000).body) < 3000
