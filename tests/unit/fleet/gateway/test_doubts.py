"""What a check and a start warn of: budgets that no request is counted against."""

import logging

import pytest
from tests.support.fake_replica import replicas
from tests.support.in_process_gateway import gateway_over, quick, spec_of

from headrace.cli.main import main
from headrace.config.fleet.accounts import (
    AccountsConfig,
    Budget,
    KeyConfig,
    Limits,
    TenantConfig,
)
from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import Price, ReplicaSpec
from headrace.config.fleet.root import DiscoveryConfig, FleetConfig
from headrace.config.fleet.tools import Grant, HttpTool, ToolsConfig
from headrace.config.secret import Secret
from headrace.fleet.gateway.doubts import doubts

SPENDS = Limits(budgets=(Budget(amount=5.0),))
OWNERS = {
    "keys": (KeyConfig(name="a", key=Secret("k"), limits=SPENDS),),
    "tenants": (TenantConfig(name="t", limits=SPENDS),),
    "anonymous": SPENDS,
}
FREE = ReplicaSpec(url="http://a")
DEAR = ReplicaSpec(url="http://b", price=Price(output=1.0))
WORDS = "no replica or pool has a price"


@pytest.mark.parametrize("owner", OWNERS)
def test_budgets_need_a_price_somewhere(owner: str) -> None:
    accounts = AccountsConfig(directory="/nowhere", **{owner: OWNERS[owner]})
    config = FleetConfig(accounts=accounts)
    (doubt,) = doubts(config, [FREE])
    assert WORDS in doubt
    assert WORDS in doubts(config, [])[-1]
    assert doubts(config, [FREE, DEAR]) == []
    pool = PoolConfig(name="p", model="m", price=Price(input=1.0))
    assert doubts(FleetConfig(accounts=accounts, pools=(pool,)), [FREE]) == []


@pytest.mark.parametrize(
    ("config", "way"),
    [
        (FleetConfig(), "refused then. Name one under `replicas` and a reload."),
        (
            FleetConfig(
                gateway=GatewayConfig(admin_keys=Secret("k")),
                discovery=DiscoveryConfig(file="r.yaml"),
            ),
            "Name one in r.yaml, by `headrace fleet add URL` or under `replicas` and a reload.",
        ),
    ],
)
def test_a_gateway_without_replicas_says_what_it_waits_for(config: FleetConfig, way: str) -> None:
    (doubt,) = doubts(config, [])
    assert doubt.startswith("There is no replica: requests wait up to 60 s (flow.cold_wait)")
    assert doubt.endswith(way)
    assert doubts(config, [FREE]) == []


def test_who_has_pools_waits_for_them() -> None:
    assert doubts(FleetConfig(pools=(PoolConfig(name="p", model="m"),)), []) == []


def test_without_budgets_nobody_needs_prices() -> None:
    assert doubts(FleetConfig(), [FREE]) == []


@pytest.mark.parametrize("command", ["gateway", "up"])
def test_a_check_warns_and_is_good(tmp_path, capsys, command: str) -> None:
    budgets = f"accounts: {{directory: '{tmp_path}', anonymous: {{budgets: [{{amount: 5}}]}}}}\n"
    file, others = tmp_path / "fleet.yaml", tmp_path / "others.yaml"
    others.write_text("[{url: 'http://a'}]")
    text = f"{budgets}pools: [{{name: chat, model: m}}]\ndiscovery: {{file: '{others}'}}\n"
    file.write_text(text)
    assert main([command, str(file), "--check"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("headrace: warning: Budgets are set and no replica")
    assert said.out.startswith(f"{file} is good: ")
    others.write_text("[{url: 'http://a', price: {input: 1}}]")
    assert main([command, str(file), "--check"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("price", "count"), [(Price(), 1), (Price(input=1.0), 0)])
async def test_a_start_warns(tmp_path, caplog, price: Price, count: int) -> None:
    accounts = AccountsConfig(directory=str(tmp_path), anonymous=SPENDS)
    async with replicas(1) as fakes:
        config = quick([spec_of(fake, price=price) for fake in fakes], accounts=accounts)
        with caplog.at_level(logging.WARNING, logger="headrace.fleet"):
            async with gateway_over(fakes, config):
                pass
    assert [WORDS in record.getMessage() for record in caplog.records].count(True) == count


def test_a_grant_to_nobody_is_doubted_where_keys_may_still_be_made() -> None:
    tools = ToolsConfig(
        http=(HttpTool(name="w", description="d", url="http://a"),),
        grants=(Grant(tools=("w",), tenants=("acme", "acmee")),),
    )
    tenants = (TenantConfig(name="acme"),)
    config = FleetConfig(
        tools=tools, accounts=AccountsConfig(directory="/nowhere", tenants=tenants)
    )
    assert doubts(config, [FREE]) == [
        "'tools.grants[0].tenants[1]': There is no tenant 'acmee'; the nearest is 'acme'."
    ]
    assert doubts(FleetConfig(tools=tools), [FREE]) == []


@pytest.mark.parametrize(
    ("host", "accounts", "is_doubted"),
    [
        ("0.0.0.0", AccountsConfig(), True),
        ("10.1.2.3", AccountsConfig(), True),
        ("127.0.0.1", AccountsConfig(), False),
        ("::1", AccountsConfig(), False),
        ("localhost", AccountsConfig(), False),
        ("0.0.0.0", AccountsConfig(required=True), False),
        ("0.0.0.0", AccountsConfig(keys=(KeyConfig(name="a", key=Secret("k")),)), False),
        ("0.0.0.0", AccountsConfig(directory="/nowhere"), False),
    ],
)
def test_a_gateway_that_is_open_to_all_says_so(
    host: str, accounts: AccountsConfig, is_doubted: bool
) -> None:
    config = FleetConfig(gateway=GatewayConfig(host=host), accounts=accounts)
    said = [d for d in doubts(config, [FREE]) if f"whoever reaches {host} may use" in d]
    assert bool(said) is is_doubted
