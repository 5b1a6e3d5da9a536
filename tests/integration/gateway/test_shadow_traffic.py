"""Copies of requests: they cost nobody anything, and are only made of what is made itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from tests.support.fake_replica import FakeReplica, Fault, replicas
from tests.support.in_process_gateway import InProcessGateway, gateway_over, quick, spec_of

from headrace.config.fleet.accounts import AccountsConfig
from headrace.config.fleet.models import ModelsConfig
from headrace.fleet.gateway.accounts.account import ANONYMOUS
from headrace.observe.catalogue import GATEWAY_SHADOWS


@asynccontextmanager
async def shadowed(**config: object) -> AsyncIterator[tuple[InProcessGateway, list[FakeReplica]]]:
    """A gateway with a replica of the model `real`, and one that gets copies."""
    async with replicas(1, model="real") as one, replicas(1, model="copy") as other:
        fakes = [*one, *other]
        rules = {"rules": [{"name": "real", "shadow": {"model": "copy"}}]}
        made = quick(
            [spec_of(fake) for fake in fakes],
            models=msgspec.convert(rules, ModelsConfig),
            **config,
        )
        async with gateway_over(fakes, made) as gateway:
            yield gateway, fakes


def ended(gateway: InProcessGateway, outcome: str) -> float:
    return gateway.gateway.parts.metrics.value(GATEWAY_SHADOWS, (outcome,))


async def settled(gateway: InProcessGateway) -> None:
    await gateway.until(lambda: not gateway.gateway.parts.shadows._tasks, "copies have ended")


def asked(fake: FakeReplica) -> int:
    return sum(seen.path.startswith("/v1/chat") for seen in fake.seen)


async def test_a_copy_is_made_of_what_is_made() -> None:
    async with shadowed() as (gateway, (real, copy)):
        for _ in range(3):
            assert (await gateway.ask(model="real", max_tokens=2)).status == 200
            await settled(gateway)
        assert (asked(real), asked(copy)) == (3, 3)
        assert ended(gateway, "answered") == 3


async def test_what_its_account_has_no_room_for_is_not_copied() -> None:
    limits = {"anonymous": {"requests_per_minute": 2}}
    accounts = msgspec.convert(limits, AccountsConfig)
    async with shadowed(accounts=accounts) as (gateway, fakes):
        statuses = []
        for _ in range(4):
            statuses.append((await gateway.ask(model="real", max_tokens=2)).status)
            await settled(gateway)
        assert statuses == [200, 200, 429, 429]
        assert [asked(fake) for fake in fakes] == [2, 2]


async def test_copies_that_fail_take_no_retries_from_those_that_somebody_waits_for() -> None:
    async with shadowed() as (gateway, (_, copy)):
        copy.always = Fault(status=500)
        for _ in range(20):
            assert (await gateway.ask(model="real", max_tokens=1)).status == 200
            await settled(gateway)
        assert ended(gateway, "failed") >= 1
        assert asked(copy) == ended(gateway, "failed")  # each is tried once
        budget = gateway.gateway.parts.service._trade.dispatcher.budget
        assert len(budget._requests) == 20
        assert not budget._retries


async def test_a_request_that_was_refused_or_left_is_charged_for_what_came_of_it() -> None:
    async with shadowed() as (gateway, (real, _)):
        real.faults.append(Fault(status=400))
        call = await gateway.ask(model="real", max_tokens=3000)
        assert call.status == 400
        real.gap = 0.001
        stream = gateway.call(model="real", max_tokens=3000, stream=True)
        await stream.until_body(600)
        stream.leave()
        await stream.end()
        await settled(gateway)
        (queue,) = gateway.gateway.parts.admission.lanes["real"].classes.values()
        assert 0 < queue.shares.counter(ANONYMOUS) < 3000
