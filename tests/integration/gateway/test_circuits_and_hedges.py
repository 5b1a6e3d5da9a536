"""The one trial of a half-open circuit, beside requests that are hedged; and what is shown of replicas that are dead."""

import pytest
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import gateway_over, quick, spec_of, until
from tests.support.patience import PATIENCE

from headrace.config.fleet.gateway import RetryConfig
from headrace.fleet.breaker import Circuit
from headrace.fleet.gateway.admin.shapes import status_of


@pytest.mark.parametrize("has_budget", [False, True])
async def test_a_hedge_that_is_refused_spends_no_trial(has_budget):
    async with replicas(2) as fakes:
        retries = RetryConfig(hedge_after=0.2, backoff=0.001)
        async with gateway_over(
            fakes, quick([spec_of(f) for f in fakes], retries=retries)
        ) as gateway:
            for fake in fakes:  # longer than a hedge is waited for
                fake.always = Fault(delay=PATIENCE if has_budget else 0.5)
            if not has_budget:
                gateway.service._trade.dispatcher.budget.has_room = lambda now: False
            call = gateway.call(max_tokens=2)
            await until(lambda: any(fake.seen for fake in fakes), "it is sent")
            asked = {f"127.0.0.1:{fake.port}" for fake in fakes if fake.seen}
            for fake in fakes:  # it answers the hedge at once
                fake.always = fake.always if fake.seen else None
            (other,) = [replica for replica in gateway.registry if replica.id not in asked]
            now = gateway.gateway.parts.service._trade.clock.monotonic()
            other.breaker._is_open, other.breaker._open_until = True, now - 1.0
            assert other.breaker.state(now) is Circuit.HALF_OPEN
            assert (await call.end()).status == 200
            is_spent = any(fake.seen for fake in fakes if f"127.0.0.1:{fake.port}" == other.id)
            assert is_spent is has_budget
            if not has_budget:
                assert other.breaker.state(now) is Circuit.HALF_OPEN
                other.breaker.note_success()


async def test_what_a_dead_replica_told_is_not_shown():
    async with replicas(2) as fakes, gateway_over(fakes) as gateway:
        clock = gateway.service._trade.clock
        (one, _) = gateway.registry
        shown = status_of(one, clock.monotonic())
        assert (shown.num_running, shown.kv_usage) == (0, 0.1)
        await next(fake for fake in fakes if f":{fake.port}" in one.id).kill()
        await until(lambda: one.ready_since is None, "it is known to be dead")
        shown = status_of(one, clock.monotonic())
        assert (shown.num_running, shown.num_waiting, shown.kv_usage) == (None, None, None)
        assert shown.models == ("fake",)
