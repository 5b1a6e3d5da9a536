"""Garbage at every route, in process: an answer below 500, an error object where it is an error, nothing left running."""

import json
import random

import pytest
from tests.support.garbage import garbage, odd_value
from tests.support.in_process import InProcess

from headrace.server.app import build_routes

NUM_REQUESTS = 400
TYPES = [
    "application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data",
    "application/problem+json", "", "\x80\xff", "a" * 500, "application/x-www-form-urlencoded",
]  # fmt: skip
HEADERS = [
    {}, {"x-request-id": "x" * 300}, {"x-request-id": "ok-1"}, {"authorization": "Bearer "},
    {"accept": "\x00", "accept-encoding": "x"}, {"content-length": "5"}, {"last-event-id": "a/b/1"},
    {"last-event-id": "chatcmpl-0/9" * 50}, {"origin": "null"}, {"x-headrace-peer": "no"},
]  # fmt: skip
FIELDS = [
    "content", "prompt", "messages", "tokens", "request_id", "request_ids", "rid", "abort_all",
    "with_pieces", "parse_special", "add_special", "return_token_strs", "skip_special_tokens",
    "chat_template", "model", "input", "metadata", "max_tokens", "tools", "tool_choice", "system",
    "thinking", "text", "reasoning", "previous_response_id", "n", "stream",
]  # fmt: skip


def body_of(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return garbage(rng)
    fields = {name: odd_value(rng) for name in rng.sample(FIELDS, rng.randint(1, 4))}
    text = json.dumps(fields)
    if rng.random() < 0.2:
        text = text.replace(": ", rng.choice([": NaN, ", ": -Infinity, ", ': "\\ud800", "x": ']), 1)
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "security", [{}, {"trust_request_chat_template": True}], ids=["", "trusting"]
)
async def test_garbage_is_never_our_fault(tmp_path, seed, security):
    rng = random.Random(seed)
    server = {"security": security, "default_max_tokens": 4, "resume_window": 65536 * (seed % 2)}
    async with InProcess(tmp_path, **server) as app:
        routes = build_routes(app.replica)
        for number in range(NUM_REQUESTS // 8):
            route = rng.choice(routes)
            path = route.path.replace("{", "").replace("}", rng.choice(["", "%00", "/../x"]))
            odd = rng.choice(["POST", "GET", "DELETE", "PUT", "HEAD", "OPTIONS"])
            method = odd if rng.random() < 0.2 else route.method
            headers = {"content-type": rng.choice(TYPES), **rng.choice(HEADERS)}
            if rng.random() < 0.7:
                headers["content-type"] = "application/json"
            raw = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
            body = body_of(rng)
            answer = await app.http.request(method, path, headers=raw, content=body)
            case = (seed, number, method, path, raw, body[:300])
            assert answer.status_code < 500, (case, answer.text)
            if answer.status_code >= 400 and method != "HEAD":
                assert answer.json()["error"]["message"], case
        assert app.engine.num_open == 0
        assert app.replica.admission.num_open == 0
        assert app.replica.bodies.num_bytes == 0
        fine = await app.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3})
        assert fine.status_code == 200
        assert len(fine.json()["choices"][0]["text"]) == 3
