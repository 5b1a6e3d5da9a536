"""Fields that nobody here knows are ignored and named, or refused; known ones are never ignored."""

import pytest
from tests.support.in_process import InProcess

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT = {"prompt": "hi", "max_tokens": 1}
NAMED = "x-headrace-ignored-fields"


async def test_ignored_fields_are_named_in_a_header(tmp_path):
    async with InProcess(tmp_path) as app:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            answer = await app.http.post(path, json=body)
            assert answer.status_code == 200
            assert NAMED not in answer.headers
            odd = {"zeta": 1, "store": {"a": [1]}, 'né\r\nx: "y", z': None}
            answer = await app.http.post(path, json={**body, **odd})
            assert answer.status_code == 200
            assert answer.headers[NAMED] == "n%C3%A9%0D%0Ax%3A%20%22y%22%2C%20z, store, zeta"


async def test_the_header_is_bounded_and_errors_carry_it_too(tmp_path):
    async with InProcess(tmp_path) as app:
        odd = {f"{n:03d}" + "x" * 1000: n for n in range(1000)}
        answer = await app.http.post("/v1/completions", json={**TEXT, **odd, "stream": True})
        assert answer.status_code == 200
        names = answer.headers[NAMED].split(", ")
        assert len(names) == 21
        assert names[-1] == "..."
        assert max(map(len, names)) == 64
        answer = await app.http.post("/v1/completions", json={**TEXT, "n": 1000, "odd": 1})
        assert (answer.status_code, answer.headers[NAMED]) == (400, "odd")


async def test_a_strict_server_refuses_and_names_them(tmp_path):
    async with InProcess(tmp_path, strict=True) as app:
        named = {**TEXT, "model": "fake"}
        assert (await app.http.post("/v1/completions", json=named)).status_code == 200
        nameless = await app.http.post("/v1/completions", json=TEXT)
        assert (nameless.status_code, nameless.json()["error"]["param"]) == (400, "model")
        answer = await app.http.post("/v1/completions", json={**named, "b": 1, "a": 2})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "unknown_parameter"
        assert error["param"] == "a"
        assert "'a', 'b'" in error["message"]


@pytest.mark.parametrize("strict", [True, False])
async def test_known_fields_that_are_not_served_stay_errors(tmp_path, strict):
    async with InProcess(tmp_path, strict=strict) as app:
        answer = await app.http.post("/v1/completions", json={**TEXT, "suffix": "x"})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "unsupported_parameter"
        assert answer.json()["error"]["param"] == "suffix"


async def test_deep_bodies_are_refused_by_the_bound_s_name(tmp_path):
    async with InProcess(tmp_path, max_json_depth=10) as app:
        deep = b'{"prompt":"x","odd":' + b"[" * 10 + b"]" * 10 + b"}"
        answer = await app.http.post("/v1/completions", content=deep)
        assert answer.status_code == 400
        assert "10" in answer.json()["error"]["message"]
        assert "max_json_depth" in answer.json()["error"]["message"]
