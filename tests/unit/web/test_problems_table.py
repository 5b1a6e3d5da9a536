"""Every exception of ours has a status, and no message of our insides leaves."""

import msgspec
import pytest

from headrace.core import errors
from headrace.web.problems import answer_to, error_named


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BadRequestError("x", param="a.b", code="odd"), 400, "odd"),
        (errors.PromptTooLongError(10, 5), 400, "context_length_exceeded"),
        (errors.BodyTooLargeError("x"), 413, "body_too_large"),
        (errors.UnsupportedMediaError("x"), 415, "unsupported_media_type"),
        (errors.AuthenticationError("x"), 401, "invalid_api_key"),
        (errors.PermissionDeniedError("x"), 403, "permission_denied"),
        (errors.NotFoundError("x"), 404, "not_found"),
        (errors.ModelNotFoundError("x"), 404, "model_not_found"),
        (errors.OverloadedError("x"), 429, "rate_limit_exceeded"),
        (errors.UnavailableError("x"), 503, "service_unavailable"),
        (errors.DeadlineExceededError("x"), 408, "deadline_exceeded"),
        (errors.EngineDeadError("x"), 500, "engine_died"),
    ],
)
def test_status_and_code(error, status, code):
    answer = answer_to(error)
    assert (answer.status, answer.problem.code) == (status, code)
    assert answer.problem.message == str(error)
    assert answer.problem.param == getattr(error, "param", None)
    assert set(msgspec.json.decode(answer.body)) == {"error"}


@pytest.mark.parametrize("error", [ValueError("/etc/secret"), errors.KernelError("/etc/secret")])
def test_our_faults_are_not_explained(error):
    answer = answer_to(error)
    assert (answer.status, answer.problem.code) == (500, "internal_error")
    assert b"secret" not in answer.body


def test_retry_after_is_whole_seconds_rounded_up():
    assert answer_to(errors.OverloadedError("x", retry_after=3.2)).headers["retry-after"] == "4"
    assert answer_to(errors.UnavailableError("x", retry_after=0)).headers["retry-after"] == "1"


@pytest.mark.parametrize("kind", ["EngineDeadError", "DeadlineExceededError", "OverloadedError"])
def test_errors_named_by_the_engine_come_back_as_themselves(kind):
    assert type(error_named(kind, "why")) is getattr(errors, kind)


def test_a_prompt_that_only_the_engine_finds_too_long_is_still_the_client_s_fault():
    answer = answer_to(error_named("PromptTooLongError", "10 tokens, 5 fit"))
    assert (answer.status, answer.problem.code) == (400, "context_length_exceeded")
    assert answer.problem.message == "10 tokens, 5 fit"


@pytest.mark.parametrize("kind", [None, "", "SystemExit", "ModelNotFoundError", "annotations"])
def test_other_names_are_internal_errors(kind):
    assert type(error_named(kind, "why")) is errors.InternalError
