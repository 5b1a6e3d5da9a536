"""`headrace up` and `headrace down` with real servers: killed at any moment, adopted, drained, replaced."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.patience import PATIENCE
from tests.support.processes import Stream, is_gone, until
from tests.support.tiny_models import make_tiny_llama
from tests.support.up_process import KEY, UpProcess, down, no_servers_left, servers

FLEET = """
gateway: {{port: 0, admin_keys: {key}}}
drivers: {{local: {{directory: {directory}}}}}
autoscaler: {{period: 0.2s, min_backoff: 0.2s}}
health: {{probe_period: 0.1s, probe_timeout: 60s}}
pools:
  - name: chat
    model: {model}
    min_replicas: {replicas}
    max_replicas: 2
    serve: {{max-context: 512, threads: 1, served-model-name: tiny}}
"""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    made = make_tiny_llama(tmp_path / "model")
    with no_servers_left(made):
        yield made


@pytest.fixture
def file(tmp_path: Path, model: Path) -> Path:
    return write_fleet(tmp_path, model)


def write_fleet(folder: Path, model: Path, replicas: int = 1) -> Path:
    file = folder / "fleet.yaml"
    directory = folder / "state"
    file.write_text(FLEET.format(key=KEY, directory=directory, model=model, replicas=replicas))
    return file


def complete(url: str, **headers: str) -> int:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 3}
    return httpx.post(
        f"{url}/v1/completions", json=body, headers=headers, timeout=PATIENCE
    ).status_code


def stream_of(url: str) -> Stream:
    return Stream(url, model="tiny", prompt="Once", max_tokens=450, seed=1).begun()


def address_of(server: psutil.Process) -> str:
    port = next(c.laddr.port for c in server.net_connections("tcp") if c.status == "LISTEN")
    return f"http://127.0.0.1:{port}"


def test_replicas_outlive_a_killed_controller_and_the_next_one_adopts_them(
    file: Path, model: Path
) -> None:
    with UpProcess(file) as first:
        first.wait_ready()
        assert complete(first.url) == 200
        known = first.replicas()
        (server,) = servers(model)
        first.kill()
    time.sleep(0.5)
    assert not is_gone(server)
    assert complete(address_of(server)) == 200
    with UpProcess(file) as second:
        second.wait_ready()
        assert second.replicas() == known
        assert complete(second.url) == 200
        assert servers(model) == [server]
        stream = stream_of(second.url)
        done = down(file)
        assert done.returncode == 0, done.stderr
        assert second.wait() == 0
        assert stream.join().is_done
    assert is_gone(server)
    assert servers(model) == []
    assert any(line.startswith("Stopping chat-") for line in second.lines)
    assert down(file).stdout.startswith("Nothing of the fleet ")


def test_it_may_be_killed_at_any_moment(tmp_path: Path, model: Path) -> None:
    file = write_fleet(tmp_path, model, replicas=2)
    for delay in (0.0, 0.02, 0.05, 0.1, 0.4):
        with UpProcess(file) as running:
            running.wait_up()
            time.sleep(delay)
            running.kill()
    with UpProcess(file) as last:
        last.wait_ready()
        until(lambda: list(last.replicas().values()) == ["ready"] * 2, "both are ready")
        found = servers(model)
        assert len(found) == 2
        engines = [child for server in found for child in server.children(recursive=True)]
        last.process.send_signal(signal.SIGINT)
        assert last.wait() == 0
    assert all(is_gone(process) for process in [*found, *engines])


def test_a_server_that_dies_takes_its_engine_along_and_is_replaced(file: Path, model: Path) -> None:
    with UpProcess(file) as running:
        running.wait_ready()
        (server,) = servers(model)
        engines = server.children(recursive=True)
        assert engines
        server.kill()
        until(lambda: all(is_gone(engine) for engine in engines), "its engine is gone")
        # The request waits for the next one.
        assert complete(running.url) == 200
        (other,) = servers(model)
        assert other != server
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0


def test_kept_replicas_run_on_until_they_are_taken_down(file: Path, model: Path) -> None:
    with UpProcess(file, "--keep") as running:
        running.wait_ready()
        with UpProcess(file) as refused:
            assert refused.wait() == 2
        assert f"is up already, by process {running.process.pid}" in refused.lines[-1]
        (server,) = servers(model)
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
    assert not is_gone(server)
    assert complete(address_of(server)) == 200
    done = down(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert is_gone(server)


def test_a_new_version_is_rolled_out_and_a_bad_one_back_without_a_failed_request(
    tmp_path: Path, file: Path, model: Path
) -> None:
    other = make_tiny_llama(tmp_path / "other", seed=3)
    statuses: list[int] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            statuses.append(complete(running.url))

    with no_servers_left(other), UpProcess(file) as running:
        running.wait_ready()
        (old,) = running.replicas()
        client = threading.Thread(target=ask)
        client.start()
        try:
            file.write_text(file.read_text().replace(str(model), str(other)))
            running.process.send_signal(signal.SIGHUP)
            until(lambda: servers(other) and not servers(model), "all are of the new version")
            (new,) = (name for name in running.replicas() if name != old)
            file.write_text(file.read_text().replace(f"model: {other}", "model: /no/such/model"))
            running.process.send_signal(signal.SIGHUP)
            until(lambda: any("/no/such/model" in line for line in running.lines), "it fails")
            until(lambda: list(running.replicas().items()) == [(new, "ready")], "all is back")
        finally:
            is_over.set()
            client.join()
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
    assert len(statuses) > 3
    assert set(statuses) == {200}
