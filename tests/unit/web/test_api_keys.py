"""API keys: how they are written, found, read again, and that no route forgets them."""

import hashlib
import logging
import re

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.in_process import InProcess

from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig
from headrace.core.errors import AuthenticationError, ConfigError
from headrace.server.app import build_routes
from headrace.web.keys import LOOK_PERIOD, MAX_KEYS, KeyRing

OPEN = {"/livez", "/readyz", "/health"}
BY_FLAG = {"/metrics", "/metrics/vllm", "/metrics/genai", "/metrics/llama.cpp", "/load", "/slots"}


def ring(file=None, keys=None, clock=None):
    security = SecurityConfig(
        api_key_file=None if file is None else str(file),
        api_keys=None if keys is None else Secret(keys),
    )
    return KeyRing(security, clock or FakeClock())


def scope(**headers):
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return {"headers": pairs}


def test_every_way_to_write_a_key(tmp_path):
    file = tmp_path / "keys"
    digest = hashlib.sha256(b"sk-hashed").hexdigest()
    file.write_text(
        f"# ours\n\nsk-plain\nalice:sk-alice\n bob: sk-bob \ncarol:sha256:{digest}\nsha256:{digest[::-1]}\n"
    )
    keys = ring(file)
    assert keys.names == ("key-1", "alice", "bob", "carol", "key-5")
    assert [keys.find(f"sk-{n}").name for n in ("plain", "alice", "bob", "hashed")] == [
        "key-1", "alice", "bob", "carol",
    ]  # fmt: skip
    for wrong in ("", "sk", "sk-plain ", "alice:sk-alice", "alice", digest, "sk-älice", "#"):
        assert keys.find(wrong) is None


def test_keys_of_the_file_and_of_the_setting_are_both_good(tmp_path):
    (tmp_path / "keys").write_text("a:one\n")
    keys = ring(tmp_path / "keys", "b:two,three")
    assert [keys.find(text).name for text in ("one", "two", "three")] == ["a", "b", "key-2"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no API key"),
        ("# only words\n", "no API key"),
        ("good-one\na:geheim schlüssel\n", "Line 2"),
        ("a:one\na:two\n", "the name 'a'"),
        ("a:one\nb:one\n", "repeats the key"),
        ("a:sha256:12\n", "64 hexadecimal"),
        ("\x00\x01", "printable"),
        ("\n".join(f"key{n}" for n in range(MAX_KEYS + 1)), str(MAX_KEYS)),
    ],
)
def test_a_file_that_is_no_good_ends_the_start_without_quoting_keys(tmp_path, content, reason):
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        ring(tmp_path / "keys")
    assert "geheim" not in str(caught.value)


def test_a_file_that_is_missing_or_no_text_ends_the_start(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        ring(tmp_path / "none")
    (tmp_path / "keys").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text"):
        ring(tmp_path / "keys")
    with pytest.raises(ConfigError, match="no API key"):
        ring(keys=" , ")


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path, caplog):
    clock, file = FakeClock(), tmp_path / "keys"
    file.write_text("old\n")
    keys = ring(file, clock=clock)
    file.write_text("newer\nnewest\n")
    assert keys.find("newer") is None  # it is not looked at for every request
    clock.advance(LOOK_PERIOD)
    assert keys.find("newer") is not None
    assert keys.find("old") is None
    for broken in ("", "a:\n"):
        file.write_text(broken)
        clock.advance(LOOK_PERIOD)
        with caplog.at_level(logging.ERROR, "headrace.server"):
            assert keys.find("newest") is not None
            assert keys.find("") is None
    file.unlink()
    clock.advance(LOOK_PERIOD)
    assert keys.find("newest") is not None
    assert keys.is_needed


def test_either_header_is_taken_and_a_wrong_one_is_told_apart_from_none():
    keys = ring(keys="alice:sk-1,bob:sk-2")
    assert keys.authenticate(scope(authorization="Bearer sk-1")).name == "alice"
    assert keys.authenticate(scope(authorization="bearer  sk-1")).name == "alice"
    assert keys.authenticate(scope(x_api_key="sk-2")).name == "bob"
    assert keys.authenticate(scope(x_api_key="sk-2", authorization="Bearer no")).name == "bob"
    for bad in ({"authorization": "Basic sk-1"}, {"authorization": "sk-1"}, {}):
        with pytest.raises(AuthenticationError, match="needs an API key"):
            keys.authenticate(scope(**bad))
    with pytest.raises(AuthenticationError, match="not valid"):
        keys.authenticate(scope(authorization="Bearer sk-3"))


async def _calls(app):
    """(path, method) of every route with something for its parameters, and of some that are not there."""
    found = [(r.path, m) for r in build_routes(app.replica) for m in sorted(r.methods)]
    odd = ["/", "/v1", "/v1/none", "/health/", "/livez/..", "//livez", "/V1/models", "/metrics/x"]
    return [
        *found,
        *((path, "GET") for path in odd),
        ("/livez2", "POST"),
        ("/v1/models", "OPTIONS"),
    ]


async def test_every_route_refuses_without_a_key_and_with_a_wrong_one(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "alice:sk-1"}) as app:
        calls = await _calls(app)
        assert len(calls) > 25
        for path, method in calls:
            url = re.sub(r"\{[^}]*\}", "x", path)
            for headers in ({}, {"authorization": "Bearer sk-2"}, {"x-api-key": "alice:sk-1"}):
                answer = await app.http.request(method, url, headers=headers)
                if path in OPEN:
                    assert answer.status_code == 200, path
                    continue
                assert answer.status_code == 401, (path, method)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["x-request-id"]
                if method != "HEAD":
                    error = answer.json()["error"]
                    assert error["type"] == "authentication_error"
                    if not path.startswith("/v1/messages"):  # Anthropic's errors have no code
                        assert error["code"] == "invalid_api_key"


async def test_with_a_key_every_route_answers(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "alice:sk-1"}) as app:
        for path, method in await _calls(app):
            answer = await app.http.request(
                method, path, headers={"authorization": "Bearer sk-1"}, json={}
            )
            assert answer.status_code not in (401, 403), path
        page = (await app.http.get("/metrics", headers={"x-api-key": "sk-1"})).text
        assert 'headrace_api_key_requests_total{key="alice"}' in page
        assert "sk-1" not in page


async def test_metrics_and_load_are_open_by_flag_and_nothing_else(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "sk-1", "open_metrics": True}) as app:
        for path, method in await _calls(app):
            answer = await app.http.request(method, path)
            assert (answer.status_code == 401) == (path not in OPEN | BY_FLAG), path


async def test_the_log_names_the_key_and_never_shows_it_or_a_prompt(tmp_path, caplog):
    body = {"prompt": "my secret diary", "max_tokens": 2}
    async with InProcess(tmp_path, security={"api_keys": "alice:sk-1"}) as app:
        with caplog.at_level(logging.DEBUG, "headrace"):
            answer = await app.http.post(
                "/v1/completions", json=body, headers={"x-api-key": "sk-1"}
            )
            await app.http.post("/v1/completions", json=body, headers={"x-api-key": "sk-2"})
    assert answer.status_code == 200
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert fields[0]["key"] == "alice"
    assert "key" not in fields[1]
    text = str([vars(record) for record in caplog.records])
    assert "sk-1" not in text
    assert "diary" not in text


async def test_prompts_are_logged_when_asked_for(tmp_path, caplog):
    async with InProcess(tmp_path, security={"log_prompts": True}) as app:
        with caplog.at_level(logging.INFO, "headrace"):
            await app.http.post("/v1/completions", json={"prompt": "diary\n", "max_tokens": 1})
    (line,) = [r.getMessage() for r in caplog.records if r.name == "headrace.prompts"]
    assert '"diary\\n"' in line


async def test_keys_do_not_share_a_prefix_cache_unless_the_operator_says_so(tmp_path):
    for isolate in (True, False):
        security = {"api_keys": "a:sk-1,b:sk-2", "isolate_keys": isolate}
        async with InProcess(tmp_path / str(isolate), security=security) as app:
            salts = []
            submit = app.engine.submit
            app.engine.submit = lambda *r, s=salts, f=submit: s.append(r[0].cache_salt) or f(*r)
            for key in ("sk-1", "sk-2", "sk-1"):
                body = {"prompt": "x", "max_tokens": 1}
                await app.http.post("/v1/completions", json=body, headers={"x-api-key": key})
            assert salts[0] == salts[2]
            assert (salts[0] != salts[1]) == isolate
