"""Processes that are signalled, killed, starved and fed garbage: the real server, the real engine."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.garbage import garbage
from tests.support.processes import (
    ServeProcess,
    Stream,
    counters,
    cpu_seconds,
    is_gone,
    load,
    resident,
    settle,
    until,
)
from tests.support.tiny_models import make_tiny_llama

MIB = 1 << 20
PROMPT = "The rain in Spain"
CONTEXT = 16_384


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Small enough to start at once, with answers that take a while."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    return str(make_tiny_llama(path, max_context=CONTEXT, hidden_size=128, num_layers=3))


@pytest.fixture
def running(model: str) -> Iterator[ServeProcess]:
    with ServeProcess(model, "--port", "0") as process:
        yield process.wait_ready()


def say(url: str, max_tokens: int = 8) -> str:
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def test_a_killed_server_takes_its_engine_along(running: ServeProcess) -> None:
    engine = running.engine
    Stream(running.url, prompt=PROMPT, max_tokens=9000).begun()
    running.process.kill()
    running.wait()
    until(lambda: is_gone(engine), "the engine ends")


def test_a_killed_engine_is_told_and_replaced(running: ServeProcess) -> None:
    before = say(running.url)
    first = running.engine
    stream = Stream(running.url, prompt=PROMPT, max_tokens=9000).begun()
    whole = threading.Thread(target=_expect_500, args=(running.url, failures := []))
    whole.start()
    until(lambda: load(running.url)["num_running"] == 2, "both run")
    first.kill()
    until(lambda: running.ready_status() == 503 or is_replaced(running), "/readyz tells it")
    assert httpx.get(f"{running.url}/livez").status_code == 200
    stream.join()
    assert stream.is_done
    assert stream.events[-1]["error"]["code"] == "engine_died"
    whole.join()
    assert failures == ["engine_died"]
    until(lambda: running.ready_status() == 200, "the engine is back")
    assert running.engine.pid != first.pid
    assert say(running.url) == before
    assert load(running.url)["kv_blocks_used"] == 0


def is_replaced(running: ServeProcess) -> bool:
    return counters(running.url).get("headrace_engine_restarts_total", 0.0) > 0


def _expect_500(url: str, failures: list[str]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 9000, "ignore_eos": True}
    response = httpx.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 500
    failures.append(response.json()["error"]["code"])


def test_sigterm_lets_a_stream_finish(running: ServeProcess) -> None:
    engine = running.engine
    stream = Stream(running.url, prompt=PROMPT, max_tokens=1500).begun()
    running.process.send_signal(signal.SIGTERM)
    stream.join()
    assert stream.is_done
    assert stream.events[-1]["choices"][0]["finish_reason"] == "length"
    assert "stop_reason" not in stream.events[-1]["choices"][0]
    assert running.wait() == 0
    assert is_gone(engine)
    assert not [line for line in running.lines if "Traceback" in line or "ERROR" in line]


def test_a_second_sigterm_ends_at_once(running: ServeProcess) -> None:
    stream = Stream(running.url, prompt=PROMPT, max_tokens=CONTEXT - 100).begun()
    running.process.send_signal(signal.SIGTERM)
    until(lambda: running.ready_status() == 503, "it drains")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    stream.join()
    assert stream.is_done
    assert len(stream.events) < CONTEXT - 100
    assert stream.events[-1]["choices"][0]["finish_reason"] == "length"
    assert stream.events[-1]["choices"][0]["stop_reason"] == "shutdown"


def test_a_port_in_use_is_one_sentence(running: ServeProcess, model: str) -> None:
    port = running.url.rsplit(":", 1)[1]
    with ServeProcess(model, "--port", port) as second:
        assert second.wait() == 2
    (line,) = second.lines
    assert f"Port {port} on 127.0.0.1 is in use by process {running.pid}" in line
    assert "--port" in line


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    for source in (str(tmp_path / "broken.gguf"), str(tmp_path / "absent.gguf"), "no-such-model"):
        with ServeProcess(source, "--port", "0") as process:
            assert process.wait() == 2
        assert Path(source).name in process.lines[-1]
        assert not any("Traceback" in line for line in process.lines)


def test_garbage_is_refused_and_hurts_nobody(running: ServeProcess) -> None:
    rng = random.Random(8)
    before = say(running.url)
    engine = running.engine.pid
    posts = ["/v1/chat/completions", "/v1/completions"]
    others = ["/v1/models", "/livez", "/readyz", "/health", "/metrics", "/load", "/version", "/"]
    statuses = []
    with httpx.Client(base_url=running.url) as client:
        for number in range(240):
            path = rng.choice(posts) if number % 4 else rng.choice([*others, "/v1/nothing", "/%ff"])
            method = "POST" if number % 8 else rng.choice(("GET", "PUT", "DELETE", "PATCH", "HEAD"))
            kind = rng.choice(("application/json", "application/json", "text/plain", ""))
            body = garbage(rng)
            response = client.request(method, path, content=body, headers={"content-type": kind})
            assert response.status_code < 500, (method, path, body[:300], response.text)
            if response.status_code >= 400 and method != "HEAD":
                assert response.json()["error"]["message"]
            statuses.append(response.status_code)
    assert statuses.count(400) > 60
    assert statuses.count(200) > 5
    assert running.engine.pid == engine
    assert settle(running.url)["kv_blocks_used"] == 0
    assert say(running.url) == before


def test_probes_answer_while_long_prompts_run(server: str) -> None:
    prompts = [[100 + number, *range(1000, 1500)] for number in range(8)]
    streams = [Stream(server, prompt=prompt, max_tokens=1) for prompt in prompts]
    until(lambda: load(server)["num_running"] or streams[-1].is_done, "they run")
    seen = []
    while not all(stream.is_done for stream in streams):
        statuses = [httpx.get(f"{server}{path}").status_code for path in ("/livez", "/readyz")]
        seen.append((statuses, load(server)["num_running"]))
    assert all(statuses == [200, 200] for statuses, _ in seen)
    assert any(num_running for _, num_running in seen)
    for stream in streams:
        assert len(stream.join().events) == 1


def test_an_idle_server_is_small_and_sleeps() -> None:
    with ServeProcess("smollm2-135m", "--port", "0") as process:
        process.wait_ready()
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
        response = httpx.post(f"{process.url}/v1/chat/completions", json=body)
        assert response.status_code == 200
        settle(process.url)

        def is_asleep() -> bool:
            """For two seconds: what it still did after the last request is not its sleep."""
            before = cpu_seconds(process.pid)
            time.sleep(2.0)
            return cpu_seconds(process.pid) - before <= 0.04

        until(is_asleep, "it sleeps", 30.0)
        assert resident(process.pid) < 400 * MIB
