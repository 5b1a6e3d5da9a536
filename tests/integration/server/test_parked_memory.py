"""A real engine process that is parked gives its memory back, and does not grow however often it is."""

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess
from tests.support.tiny_models import make_tiny_llama

TOKEN = "not for everybody"
MIB = 2**20
CYCLES = 200


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CONTROL_TOKEN", TOKEN)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    model = make_tiny_llama(
        tmp_path / "tiny", hidden_size=256, num_kv_heads=4, num_layers=8, max_context=4096
    )
    arguments = (str(model), "--port", "0", "--threads", "1", "--kv-dtype", "f32")
    with ServeProcess(*arguments) as running:
        yield running.wait_ready()


def test_memory_of_keys_and_values_goes_back_and_stays_flat(server):
    headers = {"x-headrace-control": TOKEN}
    with httpx.Client(base_url=server.url, timeout=PATIENCE, headers=headers) as http:

        def order(name):
            assert http.post(f"/control/{name}").status_code == 200

        def ask(num_tokens):
            body = {"prompt": [5] * num_tokens, "max_tokens": 1}
            assert http.post("/v1/completions", json=body).status_code == 200

        ask(8)
        order("park")
        order("unpark")
        before = server.engine.memory_info().rss
        ask(2000)
        full = server.engine.memory_info().rss
        assert full - before > 20 * MIB, "keys and values of 2,000 tokens"
        order("park")
        assert server.engine.memory_info().rss - before < 8 * MIB
        sizes = []
        for _ in range(CYCLES):
            order("unpark")
            ask(20)
            order("park")
            sizes.append(server.engine.memory_info().rss)
        assert max(sizes[-20:]) - max(sizes[20:40]) < 2 * MIB
        cards = http.get("/control").json()["models"]
        assert (cards[0]["state"], cards[0]["num_requests"]) == ("parked", 0)
