"""Official clients with keys, right and wrong, and a key file that changes under a running server."""

import httpx
import openai
import pytest
from tests.support.fake_server import FakeServer
from tests.support.processes import until


def client(server, key):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_the_official_client_is_let_in_by_its_key_alone(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-old\n")
    with FakeServer(tmp_path, security={"api_key_file": str(keys)}) as server:
        with client(server, "sk-old") as alice:
            made = alice.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=3
            )
            assert made.usage.completion_tokens == 3
        with client(server, "sk-new") as nobody:
            with pytest.raises(openai.AuthenticationError) as refused:
                nobody.models.list()
            assert refused.value.code == "invalid_api_key"
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        keys.write_text("alice:sk-new\n")
        headers = {"x-api-key": "sk-new"}
        until(
            lambda: httpx.get(f"{server.url}/load", headers=headers).status_code == 200,
            "the new key is good",
        )
        assert httpx.get(f"{server.url}/load", headers={"x-api-key": "sk-old"}).status_code == 401
        server.signal()
        assert server.wait() == 0
        said = "\n".join(server.lines)
        assert "key=alice" in said
        assert "sk-" not in said
        assert "hi" not in said.split()
