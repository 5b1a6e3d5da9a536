"""Replicas trust the gateway; its clients must not be able to use that."""

import pytest
from tests.support.fake_replica import TOKEN, replicas, text_of
from tests.support.in_process_gateway import CHAT, COMPLETIONS, gateway_over


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_prior_output_ids_of_clients_go_no_further(path, is_stream):
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        call = await gateway.ask(
            path, seed=1, max_tokens=3, prior_output_ids=[1, 2], stream=is_stream
        )
        assert call.text == text_of(1, 3)
        assert "prior_output_ids" not in fakes[0].seen[0].body


async def test_headers_of_clients_go_no_further():
    sent = {
        "x-headrace-peer": "guessed",
        "authorization": "Bearer mine",
        "cookie": "a=b",
        "x-forwarded-for": "1.2.3.4",
        "host": "elsewhere",
        "content-type": "text/plain",
        "traceparent": "00-1-2-01",
        "x-request-id": "mine",
    }
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        await gateway.call(headers=sent, max_tokens=1).end()
        got = fakes[0].seen[0].headers
        assert got["x-headrace-peer"] == TOKEN
        assert not {"authorization", "cookie", "x-forwarded-for"} & got.keys()
        assert got["host"] == f"127.0.0.1:{fakes[0].port}"
        assert got["content-type"] == "application/json"
        assert (got["traceparent"], got["x-request-id"]) == ("00-1-2-01", "mine")


async def test_a_salt_of_a_client_is_never_one_of_the_gateways():
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        for salt in ("mine", "", "0" * 32):
            await gateway.ask(max_tokens=1, cache_salt=salt)
        salts = [seen.body.get("cache_salt") for seen in fakes[0].seen]
        assert not {"mine", "0" * 32} & set(salts)
        assert len(set(salts)) == 3
        # Sending what the gateway made of another's salt makes another one of it.
        await gateway.ask(max_tokens=1, cache_salt=salts[0])
        assert fakes[0].seen[-1].body["cache_salt"] != salts[0]


async def test_token_ids_are_for_the_gateway():
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        call = await gateway.ask(seed=1, max_tokens=20, stream=True)
        assert b"token_ids" not in call.body
        assert call.body.count(b"data:") == len(call.events) + 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"nul",
        b'{"model": 7}',
        b'{"stream": 1}',
        b'{"stream": "true"}',
        b'{"a":' * 2000,
        b"\xff\xfe",
        b'{"x":"\\ud800"}',
    ],
)
async def test_garbage_comes_to_no_replica(body):
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        call = await gateway.call(body=body).end()
        assert call.status == 400
        assert call.error["message"]
        assert not fakes[0].seen


async def test_a_model_that_nobody_has():
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        call = await gateway.ask(model="other")
        assert (call.status, call.error["code"]) == (404, "model_not_found")
        assert not fakes[0].seen
