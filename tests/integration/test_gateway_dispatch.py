"""Every way in which a replica fails a request, before and after the first byte, whole and streamed.

After each test nothing is counted, no task runs and no connection is open: `gateway_over` sees to that.
"""

import asyncio

import pytest
from tests.support.fake_replica import Fault, replicas, text_of
from tests.support.in_process_gateway import CHAT, COMPLETIONS, gateway_over, quick, spec_of
from tests.support.patience import PATIENCE

from headrace.config.fleet.gateway import RetryConfig, TimeoutConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.core.stats import ReplicaRole


def until_it_is_late(fault: Fault, seconds: float) -> TimeoutConfig:
    """Short where a replica that hangs is waited for. All else is quick, or this machine is slow."""
    hangs = fault.hang_at is not None or fault.raw in (HALF_A_HEAD, HALF_AN_ANSWER)
    limit = seconds if hangs else PATIENCE
    return TimeoutConfig(connect=PATIENCE, first_token=limit, between_tokens=limit, total=PATIENCE)


NO_JSON = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"a": 1}x'
HALF_A_HEAD = b"HTTP/1.1 200 OK\r\ncontent-le"
HALF_AN_ANSWER = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{"id":1'
)
BEFORE = {
    "cut before the head": Fault(cut_at=-1),
    "cut before the body": Fault(cut_at=0),
    "garbage": Fault(raw=b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "half of a head": Fault(raw=HALF_A_HEAD),
    "endless header": Fault(raw=b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000),
    "many headers": Fault(raw=b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000),
    "no JSON": Fault(raw=NO_JSON),
    "500": Fault(status=500),
    "502": Fault(status=502),
    "503": Fault(status=503),
    "429": Fault(status=429, retry_after="7"),
    "401": Fault(status=401),
    "404": Fault(status=404),
    "redirect": Fault(status=307),
    "wrong content type": Fault(content_type="text/html"),
    "half of an answer": Fault(raw=HALF_AN_ANSWER),
    "hangs before the head": Fault(hang_at=-1),
    "hangs before the body": Fault(hang_at=0),
}


@pytest.mark.parametrize("fault", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_before_the_first_byte_another_replica_answers(fault, is_stream):
    async with replicas(2) as fakes:
        timeouts = until_it_is_late(fault, 1.0)
        config = quick([spec_of(fake) for fake in fakes], timeouts=timeouts)
        fakes[0].always = fault
        async with gateway_over(fakes, config) as gateway:
            call = await gateway.ask(seed=5, max_tokens=2, stream=is_stream)
            assert call.status == 200, call.body
            assert call.text == text_of(5, 2)
            assert fakes[0].seen
            assert len(fakes[1].seen) == 1


@pytest.mark.parametrize("at", [1, 60, 300, 700, 1500, 2400])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("kind", ["cut_at", "hang_at", "error_at"])
@pytest.mark.parametrize("is_peer", [True, False], ids=["by tokens", "by text"])
async def test_a_stream_that_breaks_off_is_gone_on_with(path, kind, at, is_peer):
    options = {} if is_peer else {"peer_token": None}
    fault = Fault(**{kind: at})
    async with replicas(2, **options) as fakes:
        for fake in fakes:
            fake.faults.append(fault)
        retries = RetryConfig(attempts=10, resume_attempts=10, backoff=0.001)
        config = quick(
            [spec_of(fake) for fake in fakes],
            timeouts=until_it_is_late(fault, 0.3),
            retries=retries,
        )
        async with gateway_over(fakes, config) as gateway:
            call = await gateway.ask(
                path, seed=9, max_tokens=24, stream=True, stream_options={"include_usage": True}
            )
            call.check_unbroken()
            assert call.text == text_of(9, 24)
            if at < 1500:  # later nothing is left to be made, and nobody tells
                assert call.usage == {
                    "prompt_tokens": 3,
                    "completion_tokens": 24,
                    "total_tokens": 27,
                }
            assert sum(len(fake.seen) for fake in fakes) >= 2


@pytest.mark.parametrize("is_peer", [True, False], ids=["by tokens", "by text"])
async def test_a_stream_may_break_off_at_every_byte(is_peer):
    """And leave the replica in pieces of any size, with lines that end as they like."""
    options = {} if is_peer else {"peer_token": None}
    async with replicas(3, **options) as fakes:
        retries = RetryConfig(backoff=0.001, patience=5.0, budget=1.0)
        health = HealthConfig(
            probe_period=0.02, probe_timeout=PATIENCE, breaker_failures=10**6, slow_start=0.0
        )
        config = quick([spec_of(f) for f in fakes], retries=retries, health=health)
        async with gateway_over(fakes, config) as gateway:
            whole = await gateway.ask(seed=2, max_tokens=6, stream=True)
            for at in range(-1, len(whole.body) + 60, 11):
                for number, fake in enumerate(fakes):
                    fake.faults.clear()
                    fake.always = Fault(cut_at=at) if number == at % 3 else None
                    fake.piece = at % 13
                    fake.line_end = b"\r\n" if at % 2 else b"\n"
                call = await gateway.ask(seed=2, max_tokens=6, stream=True)
                call.check_unbroken()
                assert call.text == text_of(2, 6), at


async def test_a_stream_may_break_off_many_times():
    async with replicas(4) as fakes:
        for fake in fakes[:3]:
            fake.always = Fault(cut_at=500)
        async with gateway_over(fakes) as gateway:
            call = await gateway.ask(seed=1, max_tokens=30, stream=True)
            call.check_unbroken()
            assert call.text == text_of(1, 30)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_that_nobody_goes_on_with_ends_with_an_error(path):
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.always = Fault(cut_at=500)
        config = quick([spec_of(f) for f in fakes], retries=RetryConfig(resume_attempts=1))
        async with gateway_over(fakes, config) as gateway:
            call = await gateway.ask(path, seed=1, max_tokens=30, stream=True)
            assert call.is_ended
            assert call.error["type"] == "server_error"
            assert call.body.endswith(b"data: [DONE]\n\n")
            assert text_of(1, 30).startswith(call.text)
            for fake in fakes:
                fake.always = None
            assert (await gateway.ask(seed=1, max_tokens=3)).text == text_of(1, 3)


async def test_what_a_peer_told_without_ids_is_not_told_again():
    """An older one, say: whoever went on from no ids would begin at the beginning."""
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.tells_ids = False
            fake.faults.append(Fault(cut_at=700))
        async with gateway_over(fakes) as gateway:
            call = await gateway.ask(seed=5, max_tokens=12, stream=True)
            assert call.text
            assert text_of(5, 12).startswith(call.text)
            assert call.error is not None


async def test_several_choices_are_not_gone_on_with():
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.always = Fault(cut_at=400)
        async with gateway_over(fakes) as gateway:
            call = await gateway.ask(n=2, stream=True, max_tokens=6)
            assert call.error is not None
            assert call.is_ended
            assert sum(len(fake.seen) for fake in fakes) == 1


ENDS = {
    "all fail": (Fault(status=500), 502, "bad_gateway"),
    "all cut": (Fault(cut_at=3), 502, "bad_gateway"),
    "all full": (Fault(status=429, retry_after="7"), 429, "rate_limit_exceeded"),
    "all hang": (Fault(hang_at=-1), 504, "gateway_timeout"),
    "wrong": (Fault(status=400), 400, None),
    "too large": (Fault(status=413), 413, None),
}


@pytest.mark.parametrize(("fault", "status", "code"), ENDS.values(), ids=ENDS)
async def test_what_a_client_is_told_in_the_end(fault, status, code):
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.always = fault
        timeouts = until_it_is_late(fault, 0.3)
        config = quick([spec_of(fake) for fake in fakes], timeouts=timeouts)
        async with gateway_over(fakes, config) as gateway:
            call = await gateway.ask(max_tokens=1)
            assert (call.status, call.error.get("code")) == (status, code)
            assert call.headers.get("retry-after") == ("7" if status == 429 else None)
            assert fakes[0].url not in call.body.decode()
            tries = sum(len(fake.seen) for fake in fakes)
            assert tries == 1 if status in (400, 413) else tries >= 3
            for fake in fakes:
                fake.always = None
            again = await gateway.ask(seed=3, max_tokens=2)
            assert again.text == text_of(3, 2)


async def test_a_request_has_a_time_in_all():
    timeouts = TimeoutConfig(
        connect=PATIENCE, first_token=PATIENCE, between_tokens=PATIENCE, total=0.3
    )
    async with replicas(2) as fakes:
        for fake in fakes:
            fake.always = Fault(hang_at=400)
        config = quick([spec_of(fake) for fake in fakes], timeouts=timeouts)
        async with gateway_over(fakes, config) as gateway:
            whole = await gateway.ask(max_tokens=50)
            assert whole.error["code"] == "gateway_timeout"
            stream = await gateway.ask(max_tokens=50, stream=True)
            assert stream.error["code"] == "gateway_timeout"
            assert stream.is_ended


async def test_a_huge_answer_is_refused():
    async with replicas(1) as fakes:
        fakes[0].faults.append(Fault(padding=70_000_000))
        async with gateway_over(fakes) as gateway:
            assert (await gateway.ask(max_tokens=1)).text == text_of(0, 1)
            assert len(fakes[0].seen) == 2


async def test_a_kept_connection_that_was_closed_is_replaced():
    async with replicas(1) as fakes:
        retries = RetryConfig(attempts=1)
        async with gateway_over(fakes, quick([spec_of(fakes[0])], retries=retries)) as gateway:
            for number in range(20):
                fakes[0].faults.append(Fault(closes=True))
                call = await gateway.ask(seed=number, max_tokens=1)
                assert call.text == text_of(number, 1)


LEAVING = {
    "while it waits for the head": Fault(hang_at=-1),
    "while it waits for the body": Fault(hang_at=0),
    "in the middle": Fault(hang_at=200),
}


@pytest.mark.parametrize("fault", LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_ends_it_at_the_replica(fault, is_stream):
    async with replicas(1) as fakes:
        fakes[0].always = fault
        async with gateway_over(fakes) as gateway:
            call = gateway.call(max_tokens=50, stream=is_stream)
            await gateway.until(lambda: fakes[0].num_running == 1, "it runs")
            if is_stream and fault.hang_at > 0:
                await call.until_body(100)
            call.leave()
            await call.end()
            await gateway.until(lambda: fakes[0].num_running == 0, "it has ended there")
            assert fakes[0].num_left == 1
            assert not call.is_ended
            fakes[0].always = None
            assert (await gateway.ask(max_tokens=2)).status == 200


async def test_a_client_may_leave_while_another_replica_is_waited_for():
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        await fakes[0].kill()
        call = gateway.call(max_tokens=50)
        await gateway.until(lambda: next(iter(gateway.registry)).ready_since is None, "it is out")
        call.leave()
        await call.end()
        await fakes[0].start()
        await gateway.ready(1)


async def test_all_replicas_down_then_back():
    async with replicas(2) as fakes, gateway_over(fakes) as gateway:
        begun = [gateway.call(seed=i, max_tokens=40, stream=True) for i in range(8)]
        for fake in fakes:
            fake.gap = 0.005
        await begun[0].until_body(800)
        for fake in fakes:
            await fake.kill()
        waiting = [gateway.call(seed=i, max_tokens=3) for i in range(4)]
        await asyncio.sleep(0.1)
        for fake in fakes:
            await fake.start()
        for number, call in enumerate(begun):
            await call.end()
            call.check_unbroken()
            assert call.text == text_of(number, 40)
        for number, call in enumerate(waiting):
            assert (await call.end()).text == text_of(number, 3)
        await gateway.ready(2)


async def test_a_replica_that_does_not_take_our_key_is_left_alone():
    """It answers at once, so that it looks idle; were it not ejected, it would draw every request."""
    async with replicas(2) as fakes:
        health = HealthConfig(
            probe_period=5.0, probe_timeout=PATIENCE, breaker_failures=3, breaker_open=PATIENCE
        )
        config = quick([spec_of(fake) for fake in fakes], health=health)
        fakes[0].always = Fault(status=401)
        async with gateway_over(fakes, config) as gateway:
            for _ in range(20):
                assert (await gateway.ask(max_tokens=1)).status == 200
            assert len(fakes[0].seen) == 3


async def test_a_replica_for_prefill_alone_gets_no_requests():
    async with replicas(2) as fakes:
        specs = [spec_of(fakes[0], role=ReplicaRole.PREFILL), spec_of(fakes[1])]
        async with gateway_over(fakes, quick(specs)) as gateway:
            for _ in range(6):
                assert (await gateway.ask(max_tokens=1)).status == 200
            assert not fakes[0].seen
            assert [r.id for r in gateway.registry.serving(fakes[0].model)] == [specs[1].name]


async def test_without_any_replica_a_request_waits_for_one():
    """As in a fleet that was scaled to nothing: nobody can say which models there are."""
    async with replicas(1) as fakes, gateway_over([], quick([])) as gateway:
        call = gateway.call(model=fakes[0].model, seed=1, max_tokens=2)
        await gateway.until(
            lambda: gateway.gateway.parts.admission.waiting.num_requests == 1, "it waits"
        )
        gateway.registry.add(spec_of(fakes[0]))
        await call.end()
        assert (call.status, call.text) == (200, text_of(1, 2))


async def test_a_dialect_without_words_for_a_request_leaves_it_to_the_others():
    """In a fleet of several dialects; and where none has any, the client is told the field."""
    async with replicas(2) as fakes:
        foreign = ReplicaSpec(url=fakes[0].url, dialect=Dialect.ANTHROPIC, models=(fakes[1].model,))
        config = quick([foreign, spec_of(fakes[1])])
        async with gateway_over(fakes, config) as gateway:
            for _ in range(4):
                call = await gateway.ask(seed=5, max_tokens=2, logit_bias={"1": 1})
                assert (call.status, call.text) == (200, text_of(5, 2)), call.body
            assert not fakes[0].seen
            assert gateway.registry.get(foreign.name).breaker._num_failures == 0
            gateway.registry.set_draining(gateway.registry.get(spec_of(fakes[1]).name), True)
            call = await gateway.ask(max_tokens=2, logit_bias={"1": 1})
            assert (call.status, call.json["error"]["param"]) == (400, "logit_bias")
