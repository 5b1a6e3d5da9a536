"""Keys, limits, money, turns and the ledger on a whole gateway in this process."""

import asyncio

import msgspec
import pytest
from tests.support.accounts_of import accounts_config, flow_config, key
from tests.support.fake_replica import FakeReplica, Fault, replicas
from tests.support.in_process_gateway import InProcessGateway, gateway_over, quick, spec_of

from headrace.config.fleet.replicas import Price
from headrace.fleet.gateway.accounts.usage import UsageFilter
from headrace.observe import catalogue

PRICE = Price(input=1000.0, output=1_000_000.0)
BEARER = {"authorization": "Bearer secret-a"}


def config_of(fakes: list[FakeReplica], path, *, flow=None, **accounts):
    tables = {"directory": str(path), "keys": [key("a", tenant="acme")], **accounts}
    return quick(
        [spec_of(fake, price=PRICE) for fake in fakes],
        accounts=accounts_config(**tables),
        flow=flow_config(**(flow or {})),
    )


def rows(gateway: InProcessGateway) -> list[dict]:
    books = gateway.gateway.parts.books
    books.ledger.flush()
    assert books._journal.flush()
    return [row for _, row in books.usage.page(UsageFilter())]


async def test_200_requests_at_once_on_a_budget_for_50(tmp_path) -> None:
    # Each is reckoned with 7 tokens of prompt at most and one of answer: a little more than 1.
    limits = {"budgets": [{"amount": 50.0 * 1.02, "per": "total"}]}
    async with replicas(2, max_num_seqs=64) as fakes:
        config = config_of(fakes, tmp_path, keys=[key("a", limits=limits)])
        async with gateway_over(fakes, config) as gateway:
            body = msgspec.json.encode({"prompt": "q", "max_tokens": 1})
            asked = [
                gateway.call("/v1/completions", body=body, headers=BEARER).end() for _ in range(200)
            ]
            statuses = [call.status for call in await asyncio.gather(*asked)]
            assert (statuses.count(200), statuses.count(429)) == (50, 150)
            assert len(rows(gateway)) == 50
            refused = gateway.gateway.parts.metrics.value(
                catalogue.ACCOUNT_REFUSED, ("a", "budget")
            )
            assert refused == 150
            call = await gateway.ask(headers=BEARER)
            assert call.error is not None
            assert call.error["code"] == "insufficient_quota"
            assert call.headers["x-should-retry"] == "false"


async def test_the_ledger_knows_what_a_request_came_to(tmp_path) -> None:
    async with replicas(1) as fakes, gateway_over(fakes, config_of(fakes, tmp_path)) as gateway:
        for is_stream in (False, True):
            call = await gateway.ask(headers=BEARER, max_tokens=5, stream=is_stream)
            assert call.status == 200
        assert (await gateway.ask(headers={})).status == 401
        found = rows(gateway)
        assert [(row["key"], row["tenant"], row["status"]) for row in found] == [
            ("a", "acme", 200)
        ] * 2
        for row in found:
            assert row["output_tokens"] == 5
            assert row["cost"] == pytest.approx(5.0 + 0.001 * row["prompt_tokens"])
            assert 0.0 < row["ttft"] <= row["latency"]


async def test_a_client_that_leaves_pays_for_what_was_computed(tmp_path) -> None:
    limits = {"budgets": [{"amount": 1000.0, "per": "total"}], "concurrency": 1}
    async with replicas(1, gap=0.02) as fakes:
        config = config_of(fakes, tmp_path, keys=[key("a", limits=limits)])
        async with gateway_over(fakes, config) as gateway:
            stream = gateway.call(headers=BEARER, max_tokens=200, stream=True)
            await stream.until_body(600)
            stream.leave()
            await stream.end()
            fakes[0].faults.append(Fault(hang_at=-1))
            whole = gateway.call(headers=BEARER, max_tokens=200)
            await gateway.until(lambda: len(fakes[0].seen) == 2, "the replica has it")
            whole.leave()
            await whole.end()
            first, second = rows(gateway)
            assert (first["status"], second["status"]) == (499, 499)
            assert 0 < first["output_tokens"] < 200
            assert (second["output_tokens"], second["prompt_tokens"] > 0) == (0, True)
            books = gateway.gateway.parts.books
            (state,) = await books.accounts.budgets(books.accounts._directory.find("secret-a"))
            assert state.set_aside == 0.0
            assert state.spent == pytest.approx(first["cost"] + second["cost"])


async def test_a_reload_changes_classes_while_requests_wait(tmp_path) -> None:
    async with replicas(1, gap=0.05, max_num_seqs=1) as fakes:
        config = config_of(fakes, tmp_path)
        async with gateway_over(fakes, config) as gateway:
            calls = [gateway.call(headers=BEARER, max_tokens=5) for _ in range(4)]
            admission = gateway.gateway.parts.admission
            await gateway.until(lambda: admission.waiting.num_requests > 0, "requests wait")
            other = config_of(
                fakes, tmp_path, flow={"classes": [{"name": "gold", "rank": 3}, {"name": "lead"}]}
            )
            gateway.service.apply(other)
            calls.append(gateway.call(headers=BEARER, max_tokens=5))
            assert [(await call.end()).status for call in calls] == [200] * 5


GARBAGE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


@pytest.mark.parametrize(
    "usage",
    ['{"prompt_tokens":1%s}' % ("0" * 30), '{"completion_tokens":true}', "{}", '{"prompt_tokens":-5}', "null"],
)  # fmt: skip
async def test_what_a_replica_tells_of_usage_cannot_harm_the_accounts(tmp_path, usage) -> None:
    limits = {"budgets": [{"amount": 1000.0, "per": "total"}]}
    told = (
        '{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"some words"},'
        f'"finish_reason":"stop"}}],"usage":{usage}}}'
    ).encode()
    async with replicas(1) as fakes:
        config = config_of(fakes, tmp_path, keys=[key("a", limits=limits)])
        async with gateway_over(fakes, config) as gateway:
            fakes[0].faults.append(Fault(raw=GARBAGE % (len(told), told)))
            assert (await gateway.ask(headers=BEARER, max_tokens=9)).status == 200
            assert (await gateway.ask(headers=BEARER, max_tokens=5)).status == 200
            first, second = rows(gateway)
            # Reckoned from what was sent, never more than was set aside for it, and never nothing.
            assert 0 < first["output_tokens"] <= 9
            assert 0 < first["prompt_tokens"] < 100
            assert second["output_tokens"] == 5
            books = gateway.gateway.parts.books
            (state,) = await books.accounts.budgets(books.accounts._directory.find("secret-a"))
            assert state.set_aside == 0.0
            assert state.spent == pytest.approx(first["cost"] + second["cost"])


async def test_who_is_refused_or_leaves_has_made_a_request_all_the_same(tmp_path) -> None:
    limits = {"requests_per_minute": 3}
    async with replicas(1) as fakes:
        config = config_of(fakes, tmp_path, keys=[key("a", limits=limits)])
        specs, config = config.replicas, msgspec.structs.replace(config, replicas=())
        async with gateway_over([], config) as gateway:
            admission = gateway.gateway.parts.admission
            waits = gateway.call(headers=BEARER, model="fake", max_tokens=5)
            await gateway.until(lambda: admission.waiting.num_requests > 0, "it waits")
            waits.leave()
            await waits.end()
            gateway.registry.reconcile(specs)
            await gateway.ready(1)
            fakes[0].faults.append(Fault(status=400))
            assert (await gateway.ask(headers=BEARER)).status == 400
            fakes[0].faults.append(Fault(hang_at=-1))
            at_work = gateway.call(headers=BEARER, max_tokens=5)
            await gateway.until(lambda: len(fakes[0].seen) == 2, "the replica has it")
            at_work.leave()
            await at_work.end()
            assert (await gateway.ask(headers=BEARER)).status == 429


async def test_what_waited_for_its_first_replica_is_paid(tmp_path) -> None:
    limits = {"budgets": [{"amount": 20.0, "per": "total"}]}
    async with replicas(1) as fakes:
        config = config_of(fakes, tmp_path, keys=[key("a", limits=limits)])
        specs, config = config.replicas, msgspec.structs.replace(config, replicas=())
        async with gateway_over([], config) as gateway:
            call = gateway.call(headers=BEARER, model="fake", max_tokens=15)
            admission = gateway.gateway.parts.admission
            await gateway.until(lambda: admission.waiting.num_requests > 0, "it waits")
            gateway.registry.reconcile(specs)
            assert (await call.end()).status == 200
            (row,) = rows(gateway)
            books = gateway.gateway.parts.books
            (state,) = await books.accounts.budgets(books.accounts._directory.find("secret-a"))
            assert state.spent == pytest.approx(row["cost"])
            assert row["cost"] > 15.0
            assert (await gateway.ask(headers=BEARER, model="fake", max_tokens=9)).status == 429
