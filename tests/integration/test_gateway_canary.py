"""A canary behind a whole gateway: switched off for its failures, whatever its clients were told."""

import msgspec
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import gateway_over, quick, spec_of

from headrace.config.fleet.gateway import RetryConfig
from headrace.config.fleet.models import ModelsConfig

FALLBACK = [{"version": "v1"}]
#: Nobody else may answer for a version that fails: waiting for it to come back is of no use here.
RETRIES = RetryConfig(backoff=0.001, patience=0.05)


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


async def test_fallbacks_that_answer_do_not_hide_its_failures() -> None:
    statuses, said = await _statuses(Fault(status=500), FALLBACK)
    assert statuses == {200}
    assert "canary off: errors 100.0% against 0.0%" in said
