"""A request is ended by its id or its client's name for it, by whoever started it and nobody else."""

import asyncio
import json

import pytest
from tests.support.in_process import InProcess
from tests.support.patience import PATIENCE

BODY = {"prompt": "hi", "max_tokens": 50, "ignore_eos": True}
ALICE, BOB = {"x-api-key": "sk-a"}, {"x-api-key": "sk-b"}


@pytest.fixture
async def app(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "a:sk-a,b:sk-b"}) as running:
        running.engine.is_held = True
        yield running


async def started(app, name, headers=ALICE, **body):
    """A request that runs for ever, on its way."""
    before = app.engine.num_open
    named = headers | {"x-request-id": name}
    task = asyncio.create_task(app.http.post("/v1/completions", json=BODY | body, headers=named))
    async with asyncio.timeout(PATIENCE):
        while app.engine.num_open <= before:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0)
    return task


async def abort(app, path="/v1/abort", headers=ALICE, **body):
    return await app.http.post(path, json=body, headers=headers)


async def test_the_request_ends_and_says_why(app):
    task = await started(app, "mine")
    answer = await abort(app, request_id="mine")
    assert (answer.status_code, answer.json()) == (200, {"aborted": ["mine"], "num_aborted": 1})
    ended = await task
    assert ended.status_code == 499
    assert ended.json()["error"]["code"] == "request_cancelled"
    assert app.engine.num_open == 0
    assert (await abort(app, request_id="mine")).status_code == 404


async def test_a_stream_ends_with_an_error_event(app):
    task = await started(app, "mine", stream=True)
    for _ in range(5):
        app.engine.is_held = False
        await asyncio.sleep(0)
        app.engine.is_held = True
    (answer_id,) = [name for name in app.replica.open_requests.names(_digest(app)) if "-" in name]
    assert (await abort(app, request_id=[answer_id, "none"])).json()["aborted"] == [answer_id]
    events = [line[6:] for line in (await task).text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "request_cancelled"
    assert json.loads(events[-3])["choices"][0]["finish_reason"] == "error"


def _digest(app):
    return app.replica.keys.find("sk-a").digest


async def test_another_key_finds_nothing(app):
    task = await started(app, "mine")
    assert (await abort(app, headers=BOB, request_id="mine")).status_code == 404
    assert (await abort(app, "/abort_request", BOB, abort_all=True)).json()["num_aborted"] == 0
    assert app.engine.num_open == 1
    assert (await abort(app, request_id="mine")).status_code == 200
    await task


async def test_the_dialects_of_sglang_and_vllm(app):
    first, second = await started(app, "one"), await started(app, "two")
    answer = await abort(app, "/abort_request", rid="one")
    assert answer.json()["aborted"] == ["one"]
    answer = await abort(app, "/abort_requests", request_ids=["two", "three"])
    assert answer.json() == {"aborted": ["two"], "num_aborted": 1}
    assert (await abort(app, "/abort_requests", request_ids=["two"])).status_code == 200
    await asyncio.gather(first, second)
    tasks = [await started(app, "x"), await started(app, "x"), await started(app, "y", BOB)]
    assert (await abort(app, "/abort_request", abort_all=True)).json()["num_aborted"] == 2
    assert app.engine.num_open == 1
    await abort(app, headers=BOB, request_id="y")
    assert [t.status_code for t in await asyncio.gather(*tasks)] == [499] * 3


async def test_one_of_several_prompts_is_ended_by_its_own_id_and_all_by_the_answer_s(app):
    task = await started(app, "mine", prompt=["a", "b"])
    names = sorted(app.replica.open_requests.names(_digest(app)), key=len)
    assert len(names) == 4  # ours, the answer's, and one a prompt
    assert (await abort(app, request_id=names[1])).json()["num_aborted"] == 1
    assert (await task).status_code == 499
    assert app.replica.open_requests.names(_digest(app)) == []


@pytest.mark.parametrize("body", [{}, {"request_id": 5}, {"request_ids": [1]}, {"rid": []}])
async def test_what_names_nothing_is_refused(app, body):
    assert (await abort(app, **body)).status_code == 400
