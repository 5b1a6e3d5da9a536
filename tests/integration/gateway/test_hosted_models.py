"""Servers of other dialects behind a gateway: what only shows when requests wait, are tried again, or are cut short."""

import json
from datetime import UTC, datetime

from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import COMPLETIONS, gateway_over, quick

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.secret import Secret
from headrace.core.clock import SystemClock
from headrace.fleet.breaker import Circuit


def outputs(*texts):
    """The beginning of a stream of Triton's that is not over."""
    events = [f"data: {json.dumps({'text_output': text})}\n\n" for text in texts]
    body = "".join(events).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
    return head + body


async def test_a_stop_string_ends_a_stream_whose_server_does_not_know_it():
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=outputs("one ", "EN", "D two"))
        spec = ReplicaSpec(url=fakes[0].url, dialect=Dialect.TRITON, models=("fake",))
        async with gateway_over(fakes, quick([spec])) as gateway:
            call = await gateway.ask(
                COMPLETIONS, model="fake", stream=True, stop="END", max_tokens=9
            )
            assert (call.text, call.finish_reasons) == ("one ", ["stop"])
            call.check_unbroken()
            # Nobody listens any more, so the server ends it.
            await gateway.until(lambda: gateway.registry.get(spec.name).load.is_idle, "it is idle")


async def test_a_model_that_fails_at_a_request_opens_no_circuit():
    """One tenant's schema of a tool must not take the replica from everybody."""
    said = json.dumps({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]})
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(said)}"
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=f"{head}\r\n\r\n{said}".encode())
        spec = ReplicaSpec(
            url=fakes[0].url, dialect=Dialect.VERTEX, models=("fake",), api_key=Secret("k")
        )
        async with gateway_over(fakes, quick([spec])) as gateway:
            replica = gateway.registry.get(spec.name)
            for _ in range(replica.breaker.max_failures + 1):
                call = await gateway.ask(model="fake")
                assert call.status == 502
                assert "The model failed at this request" in call.body.decode()
            assert replica.breaker.state(SystemClock().monotonic()) is Circuit.CLOSED
            # Tried again all the same.
            assert len(fakes[0].seen) > replica.breaker.max_failures + 1


async def test_an_error_behind_a_stop_string_makes_no_error_of_a_finished_answer():
    behind = f"data: {json.dumps({'error': 'broken'})}\n\n".encode()
    async with replicas(1) as fakes:
        fakes[0].always = Fault(raw=outputs("one ", "END two") + behind)
        spec = ReplicaSpec(url=fakes[0].url, dialect=Dialect.TRITON, models=("fake",))
        async with gateway_over(fakes, quick([spec])) as gateway:
            call = await gateway.ask(
                COMPLETIONS, model="fake", stream=True, stop="END", max_tokens=9
            )
            assert (call.text, call.finish_reasons) == ("one ", ["stop"])
            call.check_unbroken()
            assert len(fakes[0].seen) == 1


class Hours(SystemClock):
    """Each look at the clock on the wall is an hour later than the last."""

    looks = 0

    def wall(self):
        self.looks += 1
        return 1_700_000_000.0 + 3600.0 * self.looks


async def test_every_try_is_signed_with_its_own_time():
    async with replicas(1) as fakes:
        fakes[0].always = Fault(status=500)
        spec = ReplicaSpec(
            url=fakes[0].url, dialect=Dialect.BEDROCK, models=("fake",), region="eu-west-1",
            api_key=Secret("AKID:secret"),
        )  # fmt: skip
        async with gateway_over(fakes, quick([spec])) as gateway:
            gateway.service._trade.dispatcher.clock = Hours()
            call = await gateway.ask(model="fake")
            assert call.status == 502
            stamps = [seen.headers["x-amz-date"] for seen in fakes[0].seen]
            times = [datetime.strptime(s, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for s in stamps]
            assert len(set(times)) == len(times) > 1
            assert times == sorted(times)
