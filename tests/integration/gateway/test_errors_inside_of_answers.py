"""Replicas of other dialects that say with the status 200, inside of an answer, that there is none."""

import json

import pytest
from tests.support.fake_replica import Fault, replicas, text_of
from tests.support.in_process_gateway import CHAT, COMPLETIONS, gateway_over, quick, spec_of

from headrace.config.fleet.replicas import Dialect, ReplicaApi, ReplicaSpec
from headrace.fleet.backends.eventstream import frame

BEDROCK = "application/vnd.amazon.eventstream"


def said(*events, kind="text/event-stream"):
    """An HTTP answer."""
    body = b"".join(
        event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode()
        for event in events
    )
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def anthropic(kind):
    return said({"type": "error", "error": {"type": kind, "message": "told"}})


def tgi(kind):
    return said({"error": "told", "error_type": kind})


def bedrock(kind):
    headers = {":message-type": "exception", ":exception-type": kind}
    return said(frame(headers, b'{"message": "told"}'), kind=BEDROCK)


def plain(**error):
    return said({"error": {"message": "told", **error}})


DIALECTS = {
    "anthropic": (Dialect.ANTHROPIC, CHAT, True),
    "bedrock": (Dialect.BEDROCK, CHAT, True),
    "tgi": (Dialect.TGI, COMPLETIONS, True),
    "tgi whole": (Dialect.TGI, COMPLETIONS, False),
    "vllm": (Dialect.VLLM, CHAT, True),
}
FULL = [
    ("anthropic", anthropic("overloaded_error")),
    ("anthropic", anthropic("rate_limit_error")),
    ("bedrock", bedrock("throttlingException")),
    ("tgi", tgi("overloaded")),
    ("tgi whole", tgi("overloaded")),
    ("vllm", plain(code=503)),
    ("vllm", plain(type="rate_limit_error", code="queue_full")),
]
BROKEN = [
    ("anthropic", anthropic("api_error")),
    ("bedrock", bedrock("internalServerException")),
    ("tgi", tgi("generation")),
    ("tgi whole", tgi("generation")),
    ("vllm", plain(code=500)),
]
WRONG = [
    ("anthropic", anthropic("invalid_request_error")),
    ("bedrock", bedrock("validationException")),
    ("tgi", tgi("validation")),
    ("tgi whole", tgi("validation")),
]


def foreign(fake, dialect):
    api = ReplicaApi.NATIVE if dialect is Dialect.TGI else ReplicaApi.AUTO
    region = "eu-west-1" if dialect is Dialect.BEDROCK else ""
    return ReplicaSpec(url=fake.url, dialect=dialect, models=("fake",), api=api, region=region)


def num_failures(gateway, fake):
    """That its circuit counts."""
    return gateway.registry.get(spec_of(fake).name).breaker._num_failures


async def asked(gateway, name):
    _, path, is_stream = DIALECTS[name]
    return await gateway.ask(path, model="fake", seed=5, max_tokens=2, stream=is_stream)


async def until_it_was_asked(gateway, fakes, name):
    """Requests, until the foreign replica has had one; all of them are answered by the other one."""
    for _ in range(4):
        call = await asked(gateway, name)
        assert (call.status, call.text) == (200, text_of(5, 2)), call.body
        if fakes[0].seen:
            return
    raise AssertionError("it was not asked")


@pytest.mark.parametrize(
    ("name", "raw", "failures"),
    [*((*case, 0) for case in FULL), *((*case, 1) for case in BROKEN)],
)
async def test_another_replica_answers_and_one_that_is_full_is_not_blamed(name, raw, failures):
    async with replicas(2) as fakes:
        fakes[0].always = Fault(raw=raw)
        config = quick([foreign(fakes[0], DIALECTS[name][0]), spec_of(fakes[1])])
        async with gateway_over(fakes, config) as gateway:
            await until_it_was_asked(gateway, fakes, name)
            assert num_failures(gateway, fakes[0]) == failures


@pytest.mark.parametrize(("name", "raw"), FULL)
async def test_where_all_are_full_the_client_is_told_to_come_again(name, raw):
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=raw)
        config = quick([foreign(fakes[0], DIALECTS[name][0])])
        async with gateway_over(fakes, config) as gateway:
            call = await asked(gateway, name)
            assert call.status == 429
            assert call.headers["retry-after"]


@pytest.mark.parametrize(("name", "raw"), WRONG)
async def test_what_is_wrong_with_a_request_is_told_and_not_tried_again(name, raw):
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=raw)
        config = quick([foreign(fakes[0], DIALECTS[name][0])])
        async with gateway_over(fakes, config) as gateway:
            call = await asked(gateway, name)
            assert (call.status, call.json["error"]["message"]) == (400, "told")
            assert len(fakes[0].seen) == 1
            assert num_failures(gateway, fakes[0]) == 0


async def test_a_bill_that_was_not_paid_is_no_affair_of_clients():
    async with replicas(2) as fakes:
        fakes[0].always = Fault(status=402)
        config = quick([foreign(fakes[0], Dialect.ANTHROPIC), spec_of(fakes[1])])
        async with gateway_over(fakes, config) as gateway:
            await until_it_was_asked(gateway, fakes, "anthropic")
