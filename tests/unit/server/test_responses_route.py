"""`/v1/responses` over a fake engine: made, streamed, gone on from, in the background, asked for, forgotten."""

import asyncio
import json

import pytest
from tests.support.in_process import InProcess
from tests.support.patience import PATIENCE

ALICE, BOB = {"x-api-key": "alice-key"}, {"x-api-key": "bob-key"}


@pytest.fixture
async def app(tmp_path):
    async with InProcess(tmp_path) as running:
        yield running


async def make(app, headers=None, **fields):
    body = {"input": "hello", "max_output_tokens": 4, **fields}
    answer = await app.http.post("/v1/responses", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def get(app, name, headers=None):
    return await app.http.get(f"/v1/responses/{name}", headers=headers)


def text_of(response):
    (item,) = response["output"]
    return item["content"][0]["text"]


async def test_a_response_is_made_and_kept(app):
    made = await make(app, metadata={"k": "v"}, instructions="Be brief.", temperature=0.5)
    assert made["id"].startswith("resp_")
    assert (made["object"], made["status"], made["model"]) == ("response", "incomplete", "fake")
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (made["metadata"], made["instructions"]) == ({"k": "v"}, "Be brief.")
    assert (made["temperature"], made["store"], made["truncation"]) == (0.5, True, "disabled")
    assert len(text_of(made)) == 4
    assert made["usage"]["output_tokens"] == 4
    assert made["usage"]["total_tokens"] == made["usage"]["input_tokens"] + 4
    assert (await get(app, made["id"])).json() == made
    counted = await app.http.post(
        "/v1/responses/input_tokens", json={"input": "hello", "instructions": "Be brief."}
    )
    assert counted.json()["input_tokens"] == made["usage"]["input_tokens"]


async def test_a_stream_says_the_same_and_is_kept(app):
    whole = await make(app, seed=5, store=False)
    body = {"input": "hello", "max_output_tokens": 4, "seed": 5, "stream": True}
    async with app.http.stream("POST", "/v1/responses", json=body) as answer:
        text = (await answer.aread()).decode()
    *blocks, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert text_of(last) == text_of(whole)
    assert (await get(app, last["id"])).json() == last
    assert (await get(app, whole["id"])).status_code == 404


async def test_a_conversation_goes_on_and_costs_what_it_holds(app):
    first = await make(app, instructions="only for the first")
    second = await make(app, input="and then?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    said = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "and then?"},
    ]
    counted = await app.http.post("/v1/responses/input_tokens", json={"input": said})
    assert second["usage"]["input_tokens"] == counted.json()["input_tokens"]
    deleted = await app.http.delete(f"/v1/responses/{first['id']}")
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    third = await make(app, input="more", previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
    gone = await app.http.post(
        "/v1/responses", json={"input": "x", "previous_response_id": first["id"]}
    )
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_items_of_the_input(app):
    given = [{"role": "user", "content": str(n)} for n in range(5)]
    first = await make(app)
    made = await make(app, input=given, previous_response_id=first["id"])

    async def items(**query):
        return await app.http.get(f"/v1/responses/{made['id']}/input_items", params=query)

    page = (await items(limit=2)).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["4", "3"]
    assert (page["object"], page["has_more"]) == ("list", True)
    rest = (await items(after=page["last_id"], limit=3)).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "1", "0"]
    assert rest["has_more"] is False
    assert (await items(order="asc")).json()["data"][0]["content"][0]["text"] == "0"
    for query in ({"limit": 0}, {"limit": "x"}, {"limit": 101}, {"order": "up"}, {"after": "x"}):
        answer = await items(**query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))


async def test_an_item_of_an_earlier_answer_is_referred_to(app):
    first = await make(app)
    given = [
        {"role": "user", "content": "hello"},
        {"type": "item_reference", "id": first["output"][0]["id"]},
        {"role": "user", "content": "go on"},
    ]
    by_name = await make(app, input=given)
    given[1] = {"role": "assistant", "content": text_of(first)}
    in_full = await make(app, input=given)
    assert by_name["usage"]["input_tokens"] == in_full["usage"]["input_tokens"]


async def test_in_the_background(app):
    begun = await make(app, background=True)
    assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
    async with asyncio.timeout(PATIENCE):
        found = begun
        while found["status"] == "in_progress":
            await asyncio.sleep(0.01)
            found = (await get(app, begun["id"])).json()
    assert found["status"] == "incomplete"
    assert len(text_of(found)) == 4
    late = await app.http.post(f"/v1/responses/{begun['id']}/cancel")
    assert late.status_code == 400


async def test_the_background_is_cancelled_and_forgotten(app):
    app.engine.is_held = True
    begun = await make(app, background=True)
    assert (await get(app, begun["id"])).json()["status"] == "in_progress"
    cancelled = await app.http.post(f"/v1/responses/{begun['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (await get(app, begun["id"])).json()["status"] == "cancelled"
    other = await make(app, background=True)
    assert (await app.http.delete(f"/v1/responses/{other['id']}")).status_code == 200
    async with asyncio.timeout(PATIENCE):
        while app.replica.admission.num_open:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)
    assert app.engine.num_open == app.replica.admission.num_open == 0
    assert (await get(app, other["id"])).status_code == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": "x" * 5000}, "input"),
    ],
)
async def test_what_cannot_be(app, fields, param):
    answer = await app.http.post("/v1/responses", json={"input": "hello", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert app.replica.admission.num_open == 0


@pytest.mark.parametrize(
    ("method", "end"),
    [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")],
)
async def test_what_is_not_there(app, method, end):
    for name in ("resp_0", "compact"):
        answer = await app.http.request(method, f"/v1/responses/{name}{end}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_keys_keep_their_own(tmp_path):
    keys = {"api_keys": "alice:alice-key,bob:bob-key"}
    async with InProcess(tmp_path, security=keys) as app:
        made = await make(app, headers=ALICE)
        assert (await get(app, made["id"], ALICE)).status_code == 200
        assert (await get(app, made["id"], BOB)).status_code == 404
        body = {"input": "x", "previous_response_id": made["id"]}
        answer = await app.http.post("/v1/responses", json=body, headers=BOB)
        assert answer.status_code == 400
        assert (
            await app.http.delete(f"/v1/responses/{made['id']}", headers=BOB)
        ).status_code == 404


async def test_owners_that_a_peer_names_keep_their_own(tmp_path):
    one, other = "0" * 32, "1" * 32
    async with InProcess(tmp_path, trusted_peer_token="between us") as app:

        def of(owner):
            return {"x-headrace-peer": "between us", "x-headrace-owner": owner}

        made = await make(app, of(one))
        assert (await get(app, made["id"], of(one))).json() == made
        went_on = await make(app, of(one), previous_response_id=made["id"])
        assert went_on["usage"]["input_tokens"] > made["usage"]["input_tokens"]
        # Neither another owner, nor the peer itself, nor anybody who only says so.
        for headers in (of(other), {"x-headrace-peer": "between us"}, {"x-headrace-owner": one}):
            assert (await get(app, made["id"], headers)).status_code == 404
        url = f"/v1/responses/{made['id']}"
        assert (await app.http.delete(url, headers=of(other))).status_code == 404
        assert (await app.http.delete(url, headers=of(one))).status_code == 200
        wrong = {**of(one), "x-headrace-peer": "a guess"}
        assert (await get(app, made["id"], wrong)).status_code == 403
        assert (await get(app, made["id"], of("no digest"))).status_code == 400


async def test_a_server_that_keeps_nothing_says_so(tmp_path):
    async with InProcess(tmp_path, max_stored_responses=0) as app:
        made = await make(app)
        assert made["store"] is False
        assert (await get(app, made["id"])).status_code == 404
