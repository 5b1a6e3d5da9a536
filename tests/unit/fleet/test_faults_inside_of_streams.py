"""Whose fault an error inside of a stream is; and what a circuit makes of requests that may be at fault themselves."""

import json

import pytest

from headrace.fleet.breaker import Breaker, Circuit
from headrace.fleet.gateway.inside import ToldError, failure_of
from headrace.fleet.gateway.progress import Progress
from headrace.fleet.gateway.relay import Relay
from headrace.fleet.upstream.failure import FailureKind

ENDED = {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}


def failure(chunk):
    return failure_of(chunk, json.dumps(chunk).encode())


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "m", "type": "invalid_request_error", "code": None}},
        {"error": {"message": "m", "type": "BadRequestError", "code": 400}},
        {"error": {"message": "m", "code": "400"}},
        {"error": {"message": "m", "code": "content_filter", "status": 400}},
        {"object": "error", "message": "m", "type": "BadRequestError", "param": None, "code": 400},
        {"error": "m", "error_type": "validation"},
        {"error": {"message": "m", "http_status_code": 422}},
        {**ENDED, "error": {"code": 400, "message": "m"}},
        {"type": "error", "code": "invalid_prompt", "message": "m"},
    ],
)
def test_what_calls_the_request_wrong_is_told(chunk):
    found = failure(chunk)
    assert isinstance(found, ToldError)
    assert found.status in (400, 422)
    told = json.loads(found.body)
    error = told.get("error")
    assert "m" in (error if isinstance(error, dict) else told).values()
    assert "choices" not in told


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        (ENDED, FailureKind.STATUS),
        ({**ENDED, "error": {"code": 502, "message": "m"}}, FailureKind.STATUS),
        ({"error": {"message": "m", "type": "server_error"}}, FailureKind.STATUS),
        ({"error": {"message": "m", "code": True}}, FailureKind.STATUS),
        ({"error": "m", "error_type": "generation"}, FailureKind.STATUS),
        ({"error": [1]}, FailureKind.STATUS),
        ({"object": "error", "code": 10**400}, FailureKind.STATUS),
        ({**ENDED, "error": {"code": 429, "message": "m"}}, FailureKind.OVERLOADED),
        ({"error": {"type": "overloaded_error"}}, FailureKind.OVERLOADED),
    ],
)
def test_the_rest_is_the_servers_though_not_for_sure(chunk, kind):
    found = failure(chunk)
    assert found.kind is kind
    assert not isinstance(found, ToldError)
    assert found.is_doubtful is (kind is FailureKind.STATUS)


def test_an_end_by_error_is_passed_on_to_nobody():
    relay = Relay(Progress(), ends={"[DONE]"}, drops_usage=False, is_continuation=False)
    assert relay.feed(f"data: {json.dumps(ENDED)}\n\n".encode()) == b""
    with pytest.raises(Exception, match="error"):
        relay.check()
    assert not relay.progress.has_finished


def test_one_request_counts_once_however_often_it_is_sent():
    breaker = Breaker(3, 10.0)
    for _ in range(50):
        breaker.note_failure(0.0, 1)
    assert breaker.state(0.0) is Circuit.CLOSED
    breaker.note_failure(0.0, 2)
    breaker.note_failure(0.0, 3)
    assert breaker.state(0.0) is Circuit.OPEN


def test_a_success_forgets_them_and_a_failure_for_sure_always_counts():
    breaker = Breaker(3, 10.0)
    breaker.note_failure(0.0, 1)
    breaker.note_success()
    for _ in range(2):
        breaker.note_failure(0.0)
    breaker.note_failure(0.0, 1)
    assert breaker.state(0.0) is Circuit.OPEN
    for request in range(100):
        breaker.note_failure(0.0, request)
    assert len(breaker._doubted) <= 3
