"""A canary behind a whole gateway: switched off for its failures, whatever its clients were told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from msgspec import structs
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import (
    ClientCall,
    InProcessGateway,
    gateway_over,
    quick,
    spec_of,
)
from tests.support.patience import PATIENCE

from headrace.config.fleet.gateway import RetryConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.models import ModelsConfig
from headrace.fleet.gateway.models.canary import Sample

FALLBACK = [{"version": "v1"}]
#: Nobody else may answer for a version that fails: whoever waited for another one would not be done in time.
RETRIES = RetryConfig(backoff=0.001, patience=600.0)


def models(name: str, fallbacks: list[dict[str, str]]) -> ModelsConfig:
    rule = {
        "name": name,
        "split": [{"version": "v1"}, {"version": "v2", "canary": True}],
        "fallbacks": fallbacks,
        "rollback": {"min_samples": 5, "period": 0.001, "breaches": 2, "latency_factor": 1000.0},
    }
    return msgspec.convert({"rules": [rule]}, ModelsConfig)


async def _statuses(fault: Fault | None, fallbacks: list[dict[str, str]]) -> tuple[set[int], str]:
    """Statuses of sixty sessions' requests, and what is said of the canary in the end."""
    async with replicas(2) as fakes:
        specs = [spec_of(fake, version=f"v{n + 1}", id=f"r{n + 1}") for n, fake in enumerate(fakes)]
        fakes[1].always = fault
        async with gateway_over(fakes, quick(specs)) as gateway:
            (name,) = gateway.registry.models()
            config = quick(specs, retries=RETRIES, models=models(name, fallbacks))
            gateway.service.apply(config)
            statuses = set()
            for number in range(60):
                call = await gateway.call(
                    model=name, max_tokens=1, headers={"x-session-id": f"{number}"}
                ).end()
                statuses.add(call.status)
            return statuses, call.headers["x-headrace-model"]


async def test_a_good_canary_stays() -> None:
    statuses, said = await _statuses(None, [])
    assert statuses == {200}
    assert "canary off" not in said


async def test_a_failing_one_is_switched_off() -> None:
    statuses, said = await _statuses(Fault(status=500), [])
    assert 502 in statuses
    assert "canary off: errors 100.0% against 0.0%" in said


async def test_its_client_is_told_at_once_what_it_failed_with_and_who_did() -> None:
    async with replicas(2) as fakes:
        specs = [spec_of(fake, version=f"v{n + 1}", id=f"r{n + 1}") for n, fake in enumerate(fakes)]
        fakes[1].always = Fault(status=500)
        rules = [{"name": fakes[1].model, "split": [{"version": "v2"}]}]
        config = quick(
            specs,
            retries=RETRIES,
            models=msgspec.convert({"rules": rules}, ModelsConfig),
            # Longer than any test: who waited for the circuit would not be done.
            health=HealthConfig(probe_period=0.02, probe_timeout=PATIENCE, breaker_open=600.0),
        )
        async with gateway_over(fakes, config) as gateway:
            calls = [await gateway.call(max_tokens=1).end() for _ in range(6)]
            assert gateway.gateway.parts.registry.ejected(fakes[1].model)
        for call in calls:
            assert call.status == 502
            assert b"with status 500." in call.body
            assert call.headers["x-headrace-route"].startswith("r2; ")
            assert call.headers["x-headrace-model"] == "split v2 100%"


async def test_fallbacks_that_answer_do_not_hide_its_failures() -> None:
    statuses, said = await _statuses(Fault(status=500), FALLBACK)
    assert statuses == {200}
    assert "canary off: errors 100.0% against 0.0%" in said


async def test_streams_that_break_off_are_failures() -> None:
    async with trial(Fault(cut_at=300)) as gateway:
        calls = [await ask(gateway, number, stream=True, max_tokens=20) for number in range(40)]
        assert {call.status for call in calls} == {200}
        assert any(call.error for call in calls)
        assert "canary off: errors 100.0% against 0.0%" in calls[-1].headers["x-headrace-model"]


async def test_refusals_say_nothing_of_how_soon_it_answers() -> None:
    async with trial(Fault(status=400)) as gateway:
        statuses = {(await ask(gateway, number)).status for number in range(20)}
        assert statuses == {200, 400}
        canary, base = counted(gateway)
        assert (canary.total + base.total, canary.errors) == (20, 0)
        assert (canary.whole.count, base.whole.count) == (0, base.total)


async def test_a_client_that_leaves_waited_at_least_so_long() -> None:
    async with trial(Fault(hang_at=-1)) as gateway:
        for number in range(20):
            call = gateway.call(stream=True, max_tokens=1, headers={"x-session-id": f"{number}"})
            await gateway.until(lambda call=call: call.task.done() or is_asked(gateway), "asked")
            call.leave()
            await call.end()
        canary, base = counted(gateway)
        assert canary.total == canary.first.count > 0
        assert canary.errors == base.errors == 0


async def test_one_that_was_switched_off_stays_so_over_a_restart(tmp_path) -> None:
    file = str(tmp_path / "canaries.json")
    async with trial(Fault(status=500), file) as gateway:
        calls = [await ask(gateway, number) for number in range(40)]
        assert "canary off" in calls[-1].headers["x-headrace-model"]
    async with trial(None, file) as gateway:
        call = await ask(gateway, 0)
        assert "canary off: errors 100.0% against 0.0%" in call.headers["x-headrace-model"]


def is_asked(gateway: InProcessGateway) -> bool:
    return any(replica.load.num_requests for replica in gateway.registry)


def counted(gateway: InProcessGateway) -> tuple[Sample, Sample]:
    (one,) = gateway.gateway.parts.canaries._trials.values()
    return one._window.sums(gateway.gateway.parts.registry._clock.monotonic())


async def ask(gateway: InProcessGateway, number: int, **fields: object) -> ClientCall:
    given = {"max_tokens": 1, **fields}
    return await gateway.call(headers={"x-session-id": f"{number}"}, **given).end()


@asynccontextmanager
async def trial(fault: Fault | None, file: str | None = None) -> AsyncIterator[InProcessGateway]:
    """A gateway whose canary always does this."""
    async with replicas(2) as fakes:
        specs = [spec_of(fake, version=f"v{n + 1}", id=f"r{n + 1}") for n, fake in enumerate(fakes)]
        fakes[1].always = fault
        rules = structs.replace(models(fakes[0].model, []), file=file)
        health = HealthConfig(
            probe_period=0.02, probe_timeout=PATIENCE, slow_start=0.0, breaker_failures=1000
        )
        config = quick(specs, retries=RETRIES, models=rules, health=health)
        async with gateway_over(fakes, config) as gateway:
            yield gateway
