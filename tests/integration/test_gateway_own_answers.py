"""What the gateway answers by itself, and what it says of a file that is read again."""

import json
import logging
from pathlib import Path

import msgspec
import pytest
from tests.support.fake_replica import replicas
from tests.support.in_process_gateway import CHAT, InProcessGateway, gateway_over

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig
from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.replicas import Price, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.slos import Measure, Objective
from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig


async def test_a_path_that_is_passed_on_names_the_method_that_it_takes():
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        call = await gateway.call(CHAT, method="GET").end()
        assert (call.status, call.headers["Allow"]) == (405, "POST")
        assert call.json["error"]["code"] == "method_not_allowed"
        assert not fakes[0].seen


async def test_readyz_says_why_nothing_more_is_taken():
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        await gateway.ask(max_tokens=1)
        assert (await gateway.call("/readyz", method="GET").end()).status == 200
        await gateway.service.drain()
        call = await gateway.call("/readyz", method="GET").end()
        assert call.status == 503
        assert call.json["reason"] == "the gateway is shutting down"


async def test_a_reload_compares_with_the_address_that_is_served(tmp_path, caplog):
    file = tmp_path / "fleet.yaml"
    file.write_text("gateway: {port: 8080}")
    gateway = InProcessGateway(read_fleet(file), file).gateway
    try:
        with caplog.at_level(logging.WARNING, "headrace.fleet"):
            file.write_text("gateway: {port: 8081}")
            gateway.reload()
            assert [r.message for r in caplog.records] == [
                "These take effect at the next start: the address"
            ]
            caplog.clear()
            file.write_text("gateway: {port: 8080}")
            gateway.reload()
            assert not caplog.records
    finally:
        await gateway.close()


async def test_a_reload_answers_what_waits_for_the_next_start(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("gateway: {admin_keys: admin}")
    gateway = InProcessGateway(read_fleet(file), file)

    async def told():
        headers = {"authorization": "Bearer admin"}
        return (await gateway.call("/admin/reload", headers=headers).end()).json["message"]

    try:
        assert await told() == "The configuration was read again."
        file.write_text("gateway: {admin_keys: admin, port: 8081}\ncache: {enabled: true}")
        assert await told() == (
            "The configuration was read again. These take effect at the next start: cache, the address."
        )
    finally:
        await gateway.gateway.close()


@pytest.mark.parametrize("path", ["/metrics", "/metrics/genai"])
@pytest.mark.parametrize(
    ("has_operators", "is_open", "statuses"),
    [
        (True, False, (401, 403, 200)),
        (False, False, (401, 200, 401)),
        (True, True, (200, 200, 200)),
    ],
)
async def test_metrics_of_all_tenants_are_for_operators_where_there_are_some(
    path, has_operators, is_open, statuses
):
    config = FleetConfig(
        gateway=GatewayConfig(admin_keys=Secret("admin") if has_operators else None),
        accounts=AccountsConfig(keys=(KeyConfig(name="a", key=Secret("client")),)),
        security=SecurityConfig(open_metrics=is_open),
    )
    gateway = InProcessGateway(config)
    try:
        found = []
        for key in ("none", "client", "admin"):
            headers = {"authorization": f"Bearer {key}"}
            call = await gateway.call(path, method="GET", body=b"", headers=headers).end()
            found.append(call.status)
        assert tuple(found) == statuses
    finally:
        await gateway.gateway.close()


async def test_metrics_need_no_key_where_no_client_needs_one():
    gateway = InProcessGateway(FleetConfig(gateway=GatewayConfig(admin_keys=Secret("admin"))))
    try:
        await gateway.gateway.parts.books.accounts.load()
        call = await gateway.call("/metrics", method="GET", body=b"").end()
        assert call.status == 200
    finally:
        await gateway.gateway.close()


async def test_a_replica_is_added_with_its_secrets():
    config = FleetConfig(gateway=GatewayConfig(admin_keys=Secret("admin")))
    gateway = InProcessGateway(config)
    headers = {"authorization": "Bearer admin"}
    spec = {"url": "http://127.0.0.1:9", "id": "big", "peer_token": "s1", "api_key": "s2"}
    try:
        call = await gateway.call(
            "/admin/replicas", headers=headers, body=json.dumps(spec).encode()
        ).end()
        assert call.status == 201, call.json
        replica = gateway.registry.get("big")
        assert replica is not None
        assert (str(replica.spec.peer_token), str(replica.spec.api_key)) == ("s1", "s2")
        wrong = json.dumps({**spec, "api_key": 5}).encode()
        call = await gateway.call("/admin/replicas", headers=headers, body=wrong).end()
        assert (call.status, call.json["error"]["param"]) == (400, "api_key")
    finally:
        await gateway.gateway.close()


async def test_a_replica_of_the_file_is_changed_and_not_forgotten():
    listed = ReplicaSpec(
        url="http://127.0.0.1:9", id="big", price=Price(output=2.0), peer_token=Secret("s1")
    )
    config = FleetConfig(gateway=GatewayConfig(admin_keys=Secret("admin")), replicas=(listed,))
    gateway = InProcessGateway(config)
    headers = {"authorization": "Bearer admin"}

    async def told(method, path, **spec):
        body = json.dumps(spec).encode()
        call = await gateway.call(path, method=method, headers=headers, body=body).end()
        return call.status, call.json["message"]

    def now():
        found = gateway.registry.get("big")
        assert found is not None
        return found.spec

    one = "/admin/replicas/big"
    try:
        gateway.registry.reconcile(config.replicas)
        change = {"url": f"{listed.url}/", "id": "big", "version": "v9"}
        assert await told("POST", "/admin/replicas", **change) == (200, "Replica big was changed.")
        assert now() == msgspec.structs.replace(listed, version="v9")
        status, message = await told("DELETE", one)
        assert (status, now()) == (200, listed)
        assert "taken back" in message
        _, message = await told("DELETE", one)
        assert "`headrace fleet undrain big`" in message
        # Another server is sent nothing that was meant for this one.
        await told("POST", "/admin/replicas", url="http://127.0.0.1:10", id="big")
        assert now() == ReplicaSpec(url="http://127.0.0.1:10", id="big")
        await told("POST", "/admin/replicas", url="http://127.0.0.1:11", id="mine")
        _, message = await told("DELETE", "/admin/replicas/mine")
        assert message == "Replica mine finishes what it has, and is then forgotten."
    finally:
        await gateway.gateway.close()


async def test_a_user_without_a_home_has_a_gateway_all_the_same(monkeypatch, caplog):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("HEADRACE_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    objective = Objective(name="up", measure=Measure.AVAILABILITY, target=0.9)
    await InProcessGateway(FleetConfig()).gateway.close()
    assert not caplog.records
    await InProcessGateway(FleetConfig(slos=(objective,))).gateway.close()
    assert [r.message for r in caplog.records] == [
        "Error budgets are not kept over a restart: Could not determine home directory. Set alerts.file."
    ]
