"""Responses live on the replica that made them: the gateway goes there, for their own tenant, also after a restart."""

import contextlib
import json

import pytest
from msgspec import structs
from tests.support.in_process_gateway import gateway_over, quick, spec_of
from tests.support.keeping_gateway import keepers, over

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig
from headrace.config.secret import Secret

RESPONSES = "/v1/responses"
ALICE, BOB = {"authorization": "Bearer sk-alice"}, {"authorization": "Bearer sk-bob"}
KEYS = AccountsConfig(
    keys=(
        KeyConfig(name="alice", key=Secret("sk-alice")),
        KeyConfig(name="bob", key=Secret("sk-bob")),
    )
)


async def make(gateway, headers=None, **fields):
    call = gateway.call(
        RESPONSES, body=json.dumps({"input": "x", **fields}).encode(), headers=headers
    )
    return await call.end()


async def about(gateway, name, method="GET", end="", headers=None):
    call = gateway.call(f"{RESPONSES}/{name}{end}", body=b"", method=method, headers=headers)
    return await call.end()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_everything_about_a_response_goes_to_its_replica(is_stream):
    async with keepers(3) as fakes, over(fakes) as gateway:
        for _ in range(5):
            made = await make(gateway, stream=is_stream)
            found = made.events[0]["response"] if is_stream else made.json
            name = found["id"]
            home = next(fake for fake in fakes if f"_{fake.port}_" in name)
            assert (await about(gateway, name)).json["id"] == name
            assert (await about(gateway, name, end="/input_items")).json["what"] == "input_items"
            cancelled = await about(gateway, name, "POST", "/cancel")
            assert (cancelled.status, cancelled.json["what"]) == (200, "cancel")
            went_on = await make(gateway, previous_response_id=name)
            assert went_on.status == 200
            assert home.seen[-1].body["previous_response_id"] == name
            assert (await about(gateway, name, "DELETE")).json == {"id": name, "deleted": True}
            assert (await about(gateway, name)).status == 404
            about_it = [path for path in home.asked if name in path]
            # Found at once, and asked for again when it was forgotten.
            assert [path.split()[0] for path in about_it[:4]] == ["GET", "GET", "POST", "DELETE"]
            others = [path for fake in fakes if fake is not home for path in fake.asked]
            assert sum(name in path for path in others) == len(fakes) - 1  # once, when it was gone


async def test_a_gateway_that_was_started_again_asks():
    async with keepers(3) as fakes:
        async with over(fakes) as gateway:
            names = [(await make(gateway)).json["id"] for _ in range(3)]
        async with over(fakes) as gateway:
            assert [(await about(gateway, name)).json["id"] for name in names] == names
            went_on = await make(gateway, previous_response_id=names[1])
            assert went_on.status == 200
            num_asked = sum(len(fake.asked) for fake in fakes)
            assert (await about(gateway, names[0])).status == 200
            assert sum(len(fake.asked) for fake in fakes) == num_asked + 1  # it is known again


async def test_a_replica_that_is_away_is_not_taken_for_one_that_knows_nothing():
    async with keepers(2) as fakes:
        async with over(fakes, KEYS) as gateway:
            name = (await make(gateway, ALICE)).json["id"]
        async with over(fakes, KEYS) as gateway:
            home = next(fake for fake in fakes if f"_{fake.port}_" in name)
            await home.kill()
            asked = await about(gateway, name, headers=ALICE)
            assert (asked.status, asked.headers["retry-after"]) == (503, "2")
            assert (await make(gateway, ALICE, previous_response_id=name)).status == 503
            gateway.registry.reconcile([spec_of(fake) for fake in fakes if fake is not home])
            assert (await about(gateway, name, headers=ALICE)).status == 404


@pytest.mark.parametrize("is_new_gateway", [False, True])
async def test_tenants_do_not_see_each_others(is_new_gateway):
    async with keepers(2) as fakes, contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(over(fakes, KEYS))
        name = (await make(gateway, ALICE)).json["id"]
        if is_new_gateway:
            await stack.aclose()
            gateway = await stack.enter_async_context(over(fakes, KEYS))
        for method, end in (
            ("GET", ""),
            ("GET", "/input_items"),
            ("DELETE", ""),
            ("POST", "/cancel"),
        ):
            assert (await about(gateway, name, method, end, BOB)).status == 404
        stolen = await make(gateway, BOB, previous_response_id=name)
        assert (stolen.status, stolen.error["code"]) == (400, "previous_response_not_found")
        assert (await about(gateway, name, headers=ALICE)).json["id"] == name
        assert (await make(gateway, ALICE, previous_response_id=name)).status == 200
        assert (await about(gateway, name)).status == 401


async def test_where_owners_cannot_be_named_nobody_is_asked():
    async with keepers(2) as fakes:
        for fake in fakes:
            fake.peer_token = None
        async with over(fakes, KEYS) as gateway:
            name = (await make(gateway, ALICE)).json["id"]
            assert (await about(gateway, name, headers=ALICE)).status == 200
            assert (await about(gateway, name, headers=BOB)).status == 404
            assert sum(len(fake.asked) for fake in fakes) == 1


async def test_what_left_with_its_replica_is_said_to_be_lost():
    async with keepers(2) as fakes, over(fakes) as gateway:
        name = (await make(gateway)).json["id"]
        left = [spec_of(fake) for fake in fakes if f"_{fake.port}_" not in name]
        gateway.registry.reconcile(left)
        gone = await about(gateway, name)
        assert gone.status == 404
        assert "has left the fleet" in gone.error["message"]
        refused = await make(gateway, previous_response_id=name)
        assert (refused.status, refused.error["param"]) == (400, "previous_response_id")
        assert refused.error["code"] == "previous_response_not_found"
        assert "has left the fleet" in refused.error["message"]


async def test_what_a_replica_forgot_is_said_in_its_words():
    async with keepers(2) as fakes, over(fakes) as gateway:
        name = (await make(gateway)).json["id"]
        for fake in fakes:
            fake.kept.clear()
        refused = await make(gateway, previous_response_id=name)
        assert (refused.status, refused.error["message"]) == (400, "gone")
        assert (await about(gateway, name)).status == 404


async def test_a_draining_replica_tells_and_takes_nothing_new():
    async with keepers(2) as fakes, over(fakes) as gateway:
        name = (await make(gateway)).json["id"]
        home = next(r for r in gateway.registry if f":{name.split('_')[1]}" in r.spec.url)
        gateway.registry.set_draining(home, True)
        assert (await about(gateway, name)).status == 200
        refused = await make(gateway, previous_response_id=name)
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize("name", ["resp_", "resp_a%2e", "resp_" + "x" * 200, "resp_a.b"])
async def test_names_that_cannot_be_are_not_asked_for(name):
    async with keepers(2) as fakes, over(fakes) as gateway:
        assert (await about(gateway, name)).status == 404
        assert not any(fake.asked for fake in fakes)


async def test_a_stream_of_a_stored_response_is_refused_by_name():
    async with keepers(1) as fakes, over(fakes) as gateway:
        name = (await make(gateway)).json["id"]
        call = gateway.call(f"{RESPONSES}/{name}", body=b"", method="GET", query=b"stream=true")
        assert (await call.end()).error["param"] == "stream"


async def test_what_is_remembered_is_bounded():
    async with keepers(2) as fakes:
        config = quick([spec_of(fake) for fake in fakes])
        gateway_config = structs.replace(config.gateway, max_stored_responses=3)
        async with gateway_over(fakes, structs.replace(config, gateway=gateway_config)) as gateway:
            names = [(await make(gateway)).json["id"] for _ in range(10)]
            assert len(gateway.service._trade.homes) == 3
            assert (await about(gateway, names[0])).status == 200  # forgotten, and asked for


async def test_what_is_made_later_is_paid_by_its_bound():
    async with keepers(1) as fakes, over(fakes, KEYS) as gateway:
        rows = []
        gateway.gateway.parts.books.ledger.record = rows.append
        await make(gateway, ALICE, background=True, max_output_tokens=77)
        await make(gateway, ALICE, max_output_tokens=77)
        assert [row.output_tokens for row in rows] == [77, 2]
