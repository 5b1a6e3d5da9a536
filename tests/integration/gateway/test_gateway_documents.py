"""A gateway's `/openapi.json` and `/docs`: all that it answers, and what key each of it needs."""

from typing import Any

import jsonschema
import msgspec
from tests.support.fake_replica import replicas
from tests.support.in_process_gateway import InProcessGateway, gateway_over, quick, spec_of

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret
from headrace.fleet.gateway.endpoints import ENDPOINTS
from headrace.web.operations import BY_PATH

CLIENT = {"authorization": "Bearer client"}


def closed(config: FleetConfig) -> FleetConfig:
    """With keys for operators and for clients."""
    gateway = msgspec.structs.replace(config.gateway, admin_keys=Secret("operator"))
    accounts = AccountsConfig(keys=(KeyConfig(name="anna", key=Secret("client")),))
    return msgspec.structs.replace(config, gateway=gateway, accounts=accounts)


async def get(gateway: InProcessGateway, path: str, **headers: str) -> Any:
    return await gateway.call(path, method="GET", headers=headers).end()


def test_what_is_passed_on_is_described() -> None:
    assert BY_PATH.keys() == ENDPOINTS.keys()


async def test_documents_need_a_key_where_there_are_keys() -> None:
    async with replicas(1) as fakes:
        async with gateway_over(fakes) as gateway:
            for path in ("/docs", "/openapi.json"):
                assert (await get(gateway, path)).status == 200
        async with gateway_over(fakes, closed(quick([spec_of(fakes[0])]))) as gateway:
            for path in ("/docs", "/openapi.json"):
                assert (await get(gateway, path)).status == 401
                assert (await get(gateway, path, **CLIENT)).status == 200


async def test_the_document_has_every_route_and_its_key() -> None:
    async with (
        replicas(1) as fakes,
        gateway_over(fakes, closed(quick([spec_of(fakes[0])]))) as gateway,
    ):
        document = (await get(gateway, "/openapi.json", **CLIENT)).json
        page = (await get(gateway, "/docs", **CLIENT)).body.decode()
    paths = document["paths"]
    assert ENDPOINTS.keys() < paths.keys()
    assert {"/v1/models", "/readyz", "/metrics", "/admin/replicas", "/docs"} < paths.keys()
    assert "/v1/responses/{response_id}" in paths
    assert not [path for path in paths if path.endswith((".js", ".css", ".svg"))]
    keys = {path: next(iter(methods.values()))["security"] for path, methods in paths.items()}
    assert keys["/v1/chat/completions"] == [{"bearer": []}, {"header": []}]
    assert keys["/admin/dashboard"] == keys["/admin/replicas"] == [{"operator": []}]
    assert keys["/readyz"] == keys["/dashboard/"] == []
    tags = {tag["name"] for tag in document["tags"]}
    used = {op["tags"][0] for methods in paths.values() for op in methods.values()}
    assert tags == used
    chat = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    whole = {**chat["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(whole).validate(chat["example"])
    assert all(path in page for path in paths)
    assert "Needs one of the operators' keys." in page


async def test_an_example_of_the_page_is_answered() -> None:
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        answer = await gateway.ask(**BY_PATH["/v1/chat/completions"].example or {})
        assert answer.status == 200


async def test_a_browser_at_the_address_itself_is_led_to_the_dashboard_or_to_the_documents() -> (
    None
):
    async with replicas(1) as fakes:
        async with gateway_over(fakes) as gateway:
            answer = await get(gateway, "/")
            assert (answer.status, answer.headers["location"]) == (307, "docs")
            wrong = await gateway.ask("/")
            assert wrong.status == 405
            assert b"OpenAI's API is below /v1" in wrong.body
        async with gateway_over(fakes, closed(quick([spec_of(fakes[0])]))) as gateway:
            answer = await get(gateway, "/")  # no key: it leads to a page that asks for one
            assert (answer.status, answer.headers["location"]) == (307, "dashboard/")
            assert (await get(gateway, "/dashboard/")).status == 200
            assert (await get(gateway, "/docs")).status == 401
