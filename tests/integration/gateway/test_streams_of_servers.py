"""Streams of OpenAI-shaped servers through a gateway: ends that break off, and failures told inside of them."""

import json

import pytest
from tests.support.fake_replica import Fault, replicas, text_of
from tests.support.in_process_gateway import gateway_over, quick, spec_of

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.fleet.breaker import Circuit

HEAD = {"id": "chat-1", "object": "chat.completion.chunk", "created": 7, "model": "fake"}
DONE = b"data: [DONE]\n\n"


def event(index=0, finish=None, **delta):
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({**HEAD, 'choices': [choice]})}\n\n".encode()


def chunk(**fields):
    return f"data: {json.dumps(fields)}\n\n".encode()


def said(*events):
    """A whole HTTP answer that ends where its events do."""
    body = b"".join(events)
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def foreign(fake):
    return ReplicaSpec(url=fake.url, dialect=Dialect.VLLM, models=("fake",))


def breaker_of(gateway, fake):
    return gateway.registry.get(spec_of(fake).name).breaker


# -- an end that breaks off ---------------------------------------------------------------------------

FINISHED = (event(role="assistant", content=""), event(content="a"), event(content="b"), event(finish="stop"))  # fmt: skip


@pytest.mark.parametrize("wants_usage", [False, True])
async def test_a_replica_that_dies_before_it_tells_the_usage(wants_usage):
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=said(*FINISHED))
        rows = []
        async with gateway_over(fakes, quick([foreign(fakes[0])])) as gateway:
            gateway.gateway.parts.books.ledger.record = rows.append
            options = {"stream_options": {"include_usage": True}} if wants_usage else {}
            call = await gateway.ask(stream=True, max_tokens=9, **options)
            call.check_unbroken()
            assert (call.status, call.text, call.finish_reasons) == (200, "ab", ["stop"])
            assert call.body.endswith(DONE)
            if wants_usage:
                assert call.usage["completion_tokens"] == 2
                assert call.usage["prompt_tokens"] > 0
                assert call.events[-1]["id"] == "chat-1"
            else:
                assert call.usage is None
            (row,) = rows
            assert (row.status, row.output_tokens) == (200, 2)
            assert row.prompt_tokens > 0
            assert len(fakes[0].seen) == 1


async def test_a_replica_that_dies_behind_the_usage():
    told = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    usage = chunk(**HEAD, choices=[], usage=told)
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=said(*FINISHED, usage))
        async with gateway_over(fakes, quick([foreign(fakes[0])])) as gateway:
            call = await gateway.ask(stream=True, stream_options={"include_usage": True})
            call.check_unbroken()
            assert [each["usage"] for each in call.events if each.get("usage")] == [told]


@pytest.mark.parametrize("num_ended", [1, 2])
async def test_several_choices_have_ended_when_all_of_them_have(num_ended):
    ends = [event(index=index, finish="stop") for index in range(num_ended)]
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=said(*FINISHED[:2], event(index=1, content="x"), *ends))
        async with gateway_over(fakes, quick([foreign(fakes[0])])) as gateway:
            call = await gateway.ask(stream=True, n=2)
            assert (call.error is None) is (num_ended == 2)
            assert call.body.endswith(DONE)


async def test_azures_first_chunk_is_no_beginning():
    first = chunk(id="", object="", created=0, model="", choices=[], prompt_filter_results=[{}])
    async with replicas(2) as fakes:
        fakes[0].always = Fault(raw=said(first))
        config = quick([foreign(fakes[0]), spec_of(fakes[1])])
        async with gateway_over(fakes, config) as gateway:
            while not fakes[0].seen:
                call = await gateway.ask(seed=5, max_tokens=3, stream=True)
                call.check_unbroken()
                assert call.text == text_of(5, 3)


# -- failures inside ----------------------------------------------------------------------------------

WRONG = chunk(**HEAD, choices=[], error={"code": 400, "message": "no", "type": "BadRequestError"})


async def test_a_request_that_a_server_calls_wrong_is_refused_and_held_against_nobody():
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.always = Fault(raw=said(WRONG))
        async with gateway_over(fakes, quick([foreign(fake) for fake in fakes])) as gateway:
            for _ in range(10):
                call = await gateway.ask(stream=True)
                assert (call.status, call.json["error"]["message"]) == (400, "no")
            assert sum(len(fake.seen) for fake in fakes) == 10
            assert {breaker_of(gateway, fake)._num_failures for fake in fakes} == {0}


FAILED = said(event(finish="error"))


async def test_one_poisonous_request_opens_nobodys_circuit():
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.always = Fault(raw=FAILED)
        async with gateway_over(fakes, quick([foreign(fake) for fake in fakes])) as gateway:
            for _ in range(20):
                call = await gateway.ask(stream=True, content="poison")
                assert call.status == 502
            now = gateway.service._trade.clock.monotonic()
            for fake in fakes:
                assert fake.seen
                assert breaker_of(gateway, fake).state(now) is Circuit.CLOSED
                fake.always = None
            assert (await gateway.ask(seed=5, max_tokens=2, stream=True)).text == text_of(5, 2)


async def test_what_another_server_calls_wrong_is_held_against_nobody():
    async with replicas(2) as fakes:
        fakes[0].always, fakes[1].always = Fault(raw=FAILED), Fault(raw=said(WRONG))
        async with gateway_over(fakes, quick([foreign(fake) for fake in fakes])) as gateway:
            for number in range(200):
                call = await gateway.ask(stream=True, seed=number)
                assert (call.status, call.json["error"]["message"]) == (400, "no")
                assert breaker_of(gateway, fakes[0])._num_failures == 0
                if len(fakes[0].seen) == 5:
                    break
            else:
                raise AssertionError("it was hardly asked")


@pytest.mark.parametrize("has_other", [False, True])
async def test_a_broken_replica_is_left_alone(has_other):
    """Also where all requests are the same: others can answer it."""
    async with replicas(1 + has_other) as fakes:
        fakes[0].always = Fault(raw=FAILED)
        specs = [foreign(fakes[0]), *([spec_of(fakes[1])] if has_other else [])]
        async with gateway_over(fakes, quick(specs)) as gateway:
            breaker = breaker_of(gateway, fakes[0])
            for number in range(40):
                fields = {} if has_other else {"seed": number}
                call = await gateway.ask(stream=True, max_tokens=2, **fields)
                assert (call.status == 200) is has_other
                now = gateway.service._trade.clock.monotonic()
                if breaker.state(now) is not Circuit.CLOSED:  # open, or open long enough
                    break
            else:
                raise AssertionError("its circuit has stayed closed")
