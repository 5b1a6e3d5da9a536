"""Streams whose events have names end with one of their end events, or their clients are told that they did not."""

import contextlib
import json

import pytest
from tests.support.keeping_gateway import keepers, over

BODIES = {
    "/v1/responses": {"input": "x", "stream": True},
    "/v1/messages": {"messages": [], "max_tokens": 5, "stream": True},
}


async def stream(gateway, path):
    return await gateway.call(path, body=json.dumps(BODIES[path]).encode()).end()


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_stream_passes_as_it_is(path):
    async with keepers(1) as fakes, over(fakes) as gateway:
        call = await stream(gateway, path)
        assert len(call.events) == 4
        assert call.body.count(b"event: ") == 4
        assert call.events[-1]["type"] in ("response.completed", "message_stop")


@pytest.mark.parametrize("says_error", [False, True], ids=["cut", "error"])
@pytest.mark.parametrize("num_events", [1, 2, 3])
@pytest.mark.parametrize("path", BODIES)
async def test_one_without_an_end_is_said_to_be_broken(path, num_events, says_error):
    async with keepers(2) as fakes, over(fakes) as gateway:
        for fake in fakes:
            fake.events_before_cut, fake.says_error = num_events, says_error
        call = await stream(gateway, path)
        *before, last = call.events
        assert len(before) == num_events
        assert call.body.rstrip().split(b"\n\n")[-1].startswith(b"event: error\n")
        assert last["type"] == "error"
        assert last["error"]["message"].startswith("The replicas of this model failed to answer")
        assert last["error"]["message"].endswith("of this API cannot be gone on with; ask again.")
        assert b"10.0.0.1" not in call.body
        assert b"[DONE]" not in call.body
        if path == "/v1/responses":
            assert last["sequence_number"] == num_events
        else:
            assert last["error"]["type"] == "api_error"
        assert len([fake for fake in fakes if fake.seen]) == 1  # what has begun is not made again


@pytest.mark.parametrize("path", BODIES)
async def test_one_that_fails_before_it_begins_is_made_elsewhere(path):
    async with keepers(2) as fakes, over(fakes) as gateway:
        fakes[0].events_before_cut, fakes[0].says_error = 0, True
        for _ in range(2):
            assert len((await stream(gateway, path)).events) == 4
        assert fakes[0].seen


async def test_errors_under_anthropics_paths_are_in_its_words():
    async with contextlib.AsyncExitStack() as stack:
        fakes = await stack.enter_async_context(keepers(1))
        gateway = await stack.enter_async_context(over(fakes))
        call = await gateway.call("/v1/messages", body=b"nonsense").end()
        assert call.status == 400
        assert call.json["type"] == "error"
        assert call.json["error"]["type"] == "invalid_request_error"
