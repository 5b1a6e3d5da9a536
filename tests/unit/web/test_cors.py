"""Browsers: which pages may call, and what the others are told."""

import pytest
from tests.support.in_process import InProcess

from headrace.config.security import SecurityConfig
from headrace.core.errors import ConfigError

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, x-stainless-os",
}


async def test_a_preflight_needs_no_key_and_names_what_is_allowed(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "sk-1", "cors_origins": [PAGE]}) as app:
        answer = await app.http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in answer.headers
        other = await app.http.options(
            "/v1/chat/completions", headers=PREFLIGHT | {"origin": "https://evil.example"}
        )
        assert other.status_code == 401
        assert "access-control-allow-origin" not in other.headers


async def test_pages_that_may_call_can_read_answers_and_errors(tmp_path):
    async with InProcess(tmp_path, security={"api_keys": "sk-1", "cors_origins": [PAGE]}) as app:
        for headers in ({"x-api-key": "sk-1"}, {}):
            answer = await app.http.get("/v1/models", headers={"origin": PAGE, **headers})
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        plain = await app.http.get("/v1/models", headers={"x-api-key": "sk-1"})
        assert "access-control-allow-origin" not in plain.headers


async def test_any_page_or_none(tmp_path):
    async with InProcess(tmp_path / "a", security={"cors_origins": ["*"]}) as app:
        answer = await app.http.get("/v1/models", headers={"origin": "https://x.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
    async with InProcess(tmp_path / "b") as app:
        answer = await app.http.options("/v1/models", headers=PREFLIGHT)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["chat.example.com", "https://x/y", "ftp://x", ""])
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ConfigError, match="cors_origins"):
        SecurityConfig(cors_origins=(origin,))
