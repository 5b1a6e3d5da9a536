"""Names that clients choose: never labels of metrics, and nothing is told of those that a key may not use."""

import logging
import re

import msgspec
import pytest
from tests.support.fake_replica import replicas
from tests.support.in_process_gateway import gateway_over, quick, spec_of

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig
from headrace.config.fleet.cache import CacheConfig
from headrace.config.fleet.flow import FlowConfig
from headrace.config.fleet.models import ModelsConfig
from headrace.config.fleet.replicas import ReplicaSpec
from headrace.config.secret import Secret
from headrace.observe.catalogue import ACCOUNT_REQUESTS, FLOW_REFUSED


@pytest.mark.parametrize("has_replica", [False, True])
async def test_names_that_nobody_serves_are_no_labels(has_replica):
    specs = [ReplicaSpec(url="http://127.0.0.1:9")] if has_replica else []
    config = quick(specs, cache=CacheConfig(enabled=True), flow=FlowConfig(cold_wait=0.0))
    async with gateway_over([], config) as gateway:
        calls = [gateway.call(model=f"junk-{n}", temperature=0) for n in range(20)]
        for call in calls:
            assert (await call.end()).status in (404, 503)
        page = await gateway.call("/metrics", body=b"", method="GET").end()
        text = page.body.decode()
        assert "junk" not in text
        for metric in (FLOW_REFUSED, ACCOUNT_REQUESTS):
            counted = re.findall(
                rf'^{metric.name}\{{model="other"[^}}]*\}} ([\d.]+)', text, re.MULTILINE
            )
            assert sum(map(float, counted)) == 20, metric.name


async def test_a_key_is_told_of_its_own_models_only():
    accounts = AccountsConfig(
        keys=(
            KeyConfig(name="a", key=Secret("sk-a"), models=("mine*",)),
            KeyConfig(name="b", key=Secret("sk-b")),
        )
    )
    async with replicas(1, model="secret") as one, replicas(1, model="mine-1") as two:
        fakes = [*one, *two]
        config = quick([spec_of(fake) for fake in fakes], accounts=accounts)
        async with gateway_over(fakes, config) as gateway:
            of_a, of_b = ({"authorization": f"Bearer sk-{name}"} for name in "ab")
            missing = await gateway.call(headers=of_a, model="mine-2").end()
            assert missing.status == 404
            assert b"mine-1" in missing.body
            assert b"secret" not in missing.body
            listed = await gateway.call("/v1/models", body=b"", method="GET", headers=of_a).end()
            assert [card["id"] for card in listed.json["data"]] == ["mine-1"]
            listed = await gateway.call("/v1/models", body=b"", method="GET", headers=of_b).end()
            assert [card["id"] for card in listed.json["data"]] == ["mine-1", "secret"]
            for headers, name, status in (
                (of_a, "mine-1", 200),
                (of_a, "secret", 404),
                (of_b, "secret", 200),
                (of_b, "mine", 404),
            ):
                path = f"/v1/models/{name}"
                one = await gateway.call(path, body=b"", method="GET", headers=headers).end()
                assert one.status == status
                if status == 200:
                    (card,) = [card for card in listed.json["data"] if card["id"] == name]
                    assert one.json == card
                else:
                    assert one.error["code"] == "model_not_found"
            # One model is usable, so that it need not be named.
            assert (await gateway.call(headers=of_a, max_tokens=1).end()).status == 200
            unclear = await gateway.call(headers=of_b, max_tokens=1).end()
            assert (unclear.status, unclear.error["param"]) == (400, "model")


async def test_shared_answers_are_written_down_with_what_they_cost():
    async with replicas(1, gap=0.01) as fakes:
        config = quick([spec_of(fakes[0])], cache=CacheConfig(enabled=True))
        async with gateway_over(fakes, config) as gateway:
            rows = []
            gateway.gateway.parts.books.ledger.record = rows.append
            for is_stream in (True, False):
                rows.clear()
                calls = [
                    gateway.call(max_tokens=5 + is_stream, temperature=0, stream=is_stream)
                    for _ in range(3)
                ]
                for call in calls:
                    await call.end()
                assert sorted(call.headers["x-headrace-cache"] for call in calls) == [
                    "miss",
                    "shared",
                    "shared",
                ]
                assert [row.output_tokens for row in rows] == [5 + is_stream] * 3
                assert len({row.prompt_tokens for row in rows}) == 1
                assert [bool(row.replica) for row in rows].count(True) == 1


async def test_who_names_no_model_rightly_is_told_of_aliases_too():
    rules = [{"name": "fast", "target": "m"}, {"name": "secret", "target": "m"}]
    accounts = AccountsConfig(
        keys=(KeyConfig(name="a", key=Secret("sk-a"), models=("fast", "nope")),)
    )
    async with replicas(1, model="m") as fakes:
        config = quick(
            [spec_of(fakes[0])],
            accounts=accounts,
            models=msgspec.convert({"rules": rules}, ModelsConfig),
        )
        async with gateway_over(fakes, config) as gateway:
            call = await gateway.call(model="nope", headers={"authorization": "Bearer sk-a"}).end()
            assert call.status == 404
            assert call.error["message"].endswith("Served here: fast.")


async def test_without_keys_nothing_is_said_of_a_key():
    async with gateway_over([], quick([])) as gateway:
        call = await gateway.call(model="").end()
        assert call.status == 503
        assert call.error["message"] == "No replica serves a model."


async def test_one_that_was_never_there_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "headrace.fleet")
    specs = [ReplicaSpec(url="http://127.0.0.1:9")]
    async with gateway_over([], quick(specs)) as gateway:
        said = "has not been ready yet"
        await gateway.until(lambda: said in caplog.text, "logged")
        (replica,) = gateway.registry
        streak = gateway.gateway.parts.prober._streaks[replica]
        seen = streak.num_bad
        await gateway.until(lambda: streak.num_bad > seen + 2, "probed further")
        assert caplog.text.count(said) == 1
