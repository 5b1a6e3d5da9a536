"""`/admin/dashboard` and the page's files, out of a whole gateway over replicas that fail on demand."""

from typing import Any

import msgspec
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import (
    ClientCall,
    InProcessGateway,
    gateway_over,
    quick,
    spec_of,
)

from headrace.config.fleet.gateway import RetryConfig
from headrace.config.fleet.replicas import Price
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret

OPERATOR = {"authorization": "Bearer operator"}


def operated(config: FleetConfig) -> FleetConfig:
    gateway = msgspec.structs.replace(config.gateway, admin_keys=Secret("operator"))
    return msgspec.structs.replace(config, gateway=gateway)


async def look(gateway: InProcessGateway, **query: object) -> dict[str, Any]:
    answer = await raw(gateway, "&".join(f"{k}={v}" for k, v in query.items()), OPERATOR)
    assert answer.status == 200, answer.body
    return answer.json


async def raw(gateway: InProcessGateway, query: str, headers: dict[str, str]) -> ClientCall:
    def with_query(scope: Any, receive: Any, send: Any) -> Any:
        return app({**scope, "query_string": query.encode()}, receive, send)

    app = gateway.gateway.app
    gateway.gateway.app = with_query
    call = gateway.call("/admin/dashboard", method="GET", headers=headers)
    gateway.gateway.app = app
    return await call.end()


async def get(gateway: InProcessGateway, path: str, **headers: str) -> ClientCall:
    return await gateway.call(path, method="GET", headers=headers).end()


async def test_data_needs_an_operators_key_and_files_need_none() -> None:
    async with (
        replicas(1) as fakes,
        gateway_over(fakes, operated(quick([spec_of(fakes[0])]))) as gateway,
    ):
        assert (await raw(gateway, "", {})).status == 401
        assert (await raw(gateway, "", {"authorization": "Bearer wrong"})).status == 401
        refused = await raw(gateway, "fine=x", OPERATOR)
        assert (refused.status, refused.json["error"]["param"]) == (400, "fine")
        page = await get(gateway, "/dashboard/")
        assert page.status == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'self'" in page.headers["content-security-policy"]
        again = await get(gateway, "/dashboard/", **{"if-none-match": page.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        leads = await get(gateway, "/dashboard")
        assert (leads.status, leads.headers["location"]) == (308, "dashboard/")
        script = await get(gateway, "/dashboard/views/fleet.js")
        assert script.headers["content-type"].startswith("text/javascript")
        for path in ("/dashboard/../app.py", "/dashboard/nothing.js", "/dashboard/static/app.js"):
            assert (await get(gateway, path)).status == 404


async def test_without_operators_there_is_no_data() -> None:
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        assert (await raw(gateway, "", OPERATOR)).status == 404
        assert (await get(gateway, "/dashboard/")).status == 200


async def test_a_request_is_told_with_its_way_and_without_its_text() -> None:
    async with replicas(2) as fakes:
        price = Price(input=1.0, output=2.0)
        specs = [spec_of(fake, id=f"r{n}", price=price) for n, fake in enumerate(fakes)]
        config = operated(quick(specs, retries=RetryConfig(backoff=0.001, patience=5.0)))
        async with gateway_over(fakes, config) as gateway:
            for fake in fakes:
                fake.faults.append(Fault(status=500))
            fakes[1].faults.clear()
            asked = []
            for n in range(3):
                call = gateway.call(
                    body=None, headers={"x-request-id": f"ask-{n}"}, model="fake", stream=n != 1, max_tokens=6,
                    messages=[{"role": "user", "content": "a SECRET question"}],
                )  # fmt: skip
                asked.append(await call.end())
            assert [call.status for call in asked] == [200, 200, 200]
            first = await look(gateway)
            told = first["requests"]["items"]
            assert [one["request_id"] for one in told] == ["ask-0", "ask-1", "ask-2"]
            retried = [one for one in told if len(one["tries"]) == 2]
            assert len(retried) == 1
            bad, good = retried[0]["tries"]
            assert (bad["replica"], bad["outcome"], good["replica"], good["outcome"]) == (
                "r0", "status", "r1", "ok"
            )  # fmt: skip
            assert good["at"] >= bad["at"] + bad["seconds"]
            assert good["policy"] == "round_robin"
            for one in told:
                assert (one["status"], one["output_tokens"], one["model"]) == (200, 6, "fake")
                assert one["cost"] == 1000 * (one["prompt_tokens"] + 2 * 6)
                assert 0 <= one["queued"] <= one["ttft"] <= one["latency"]
                assert (one["itl"] is not None) == one["is_stream"]
            assert "SECRET" not in str(first)
            assert " w" not in str(first["requests"])

            gateway.gateway.dashboard._watch.tick()
            second = await look(
                gateway, life=first["gateway"]["life"], fine=first["fine"]["end"],
                requests=first["requests"]["end"],
            )  # fmt: skip
            assert second["requests"]["items"] == []
            assert len(second["fine"]["columns"]["requests"]) >= 1
            assert max(second["fine"]["columns"]["ttft_p50"]) > 0
            of_another_life = await look(gateway, life="another", requests=3)
            assert len(of_another_life["requests"]["items"]) == 3
            (tenant,) = second["tenants"]
            assert (tenant["name"], tenant["requests"], tenant["errors"]) == ("anonymous", 3, 0)
            assert {replica["id"] for replica in second["replicas"]} == {"r0", "r1"}


async def test_failures_refusals_and_who_waits() -> None:
    async with replicas(1, gap=0.02) as fakes:
        spec = spec_of(fakes[0], id="only", max_concurrency=1)
        config = operated(quick([spec], retries=RetryConfig(attempts=1, backoff=0.001)))
        async with gateway_over(fakes, config) as gateway:
            fakes[0].faults.append(Fault(status=500))
            assert (await gateway.ask(model="fake")).status == 502
            running = gateway.call(model="fake", stream=True, max_tokens=200)
            await running.until_body(1)
            waiting = gateway.call(model="fake", max_tokens=1)
            await gateway.until(
                lambda: gateway.gateway.parts.admission.waiting.num_requests == 1, "it waits"
            )
            told = await look(gateway)
            (queue,) = [queue for queue in told["queues"] if queue["requests"]]
            assert (queue["model"], queue["running"], queue["requests"]) == ("fake", 1, 1)
            assert [tenant["name"] for tenant in queue["tenants"]] == ["anonymous"]
            (failed,) = told["requests"]["items"]
            assert failed["status"] == 502
            assert failed["error"]
            running.leave()
            await running.end()
            await waiting.end()
            left = (await look(gateway))["requests"]["items"][1]
            assert left["status"] == 499
            assert left["tries"][0]["outcome"] == "cancelled"
