"""Clients that leave, servers that end, engines that die: nobody waits for ever, nothing leaks."""

import asyncio
import json
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import msgspec
import pytest
import zmq
from tests.support.fake_engine import POISON_EXIT, POISON_HANG
from tests.support.fake_server import PEER_TOKEN, FakeServer, write_byte_tokenizer
from tests.support.patience import PATIENCE
from tests.support.ports import held_port
from tests.support.processes import until

ENDLESS = {"prompt": "a", "max_tokens": 1900}


def load(server):
    return httpx.get(f"{server.url}/load").json()


def ready_status(server):
    return httpx.get(f"{server.url}/readyz").status_code


class Background:
    """A request on a thread."""

    def __init__(self, server, body, path="/v1/completions"):
        self.response = None
        self.lines = []
        self._thread = threading.Thread(target=self._run, args=(server, body, path), daemon=True)
        self._thread.start()

    def _run(self, server, body, path):
        with httpx.stream("POST", f"{server.url}{path}", json=body) as response:
            self.response = response
            self.lines = [line for line in response.iter_lines() if line]

    def join(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_sequences(tmp_path, stream):
    with FakeServer(tmp_path, engine={"step": 0.01}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps(ENDLESS | {"stream": stream, "n": 3}).encode()
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            until(lambda: load(server)["num_running"] == 3)
        until(lambda: load(server)["num_running"] == 0)
        assert load(server)["kv_blocks_used"] == 0
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'requests_finished_total{model="fake",reason="cancelled"} 3' in metrics
        assert 'status="499"' in metrics if not stream else True


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(tmp_path):
    last = tmp_path / "last"
    with FakeServer(tmp_path, engine={"last": str(last)}) as server:
        running = Background(server, {"prompt": "a", "max_tokens": 50, "stream": True})
        until(lambda: load(server)["num_running"])
        server.signal()
        until(lambda: ready_status(server) == 503)
        refused = httpx.post(f"{server.url}/v1/completions", json=ENDLESS)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert load(server)["state"] == "draining"
        last.touch()
        lines = running.join().lines
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert len(lines) == 51
        assert server.wait() == 0


def test_what_does_not_finish_in_time_gets_a_proper_end(tmp_path):
    with FakeServer(tmp_path, engine={"step": 0.02}, drain_timeout=0.2) as server:
        stream = Background(server, ENDLESS | {"stream": True})
        whole = Background(server, ENDLESS)
        until(lambda: load(server)["num_running"] == 2)
        server.signal()
        lines = stream.join().lines
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert json.loads(lines[-2][6:])["choices"][0]["stop_reason"] == "shutdown"
        assert whole.join().response.status_code == 200
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(tmp_path):
    with FakeServer(tmp_path, engine={"step": 0.02}, drain_timeout=600) as server:
        stream = Background(server, ENDLESS | {"stream": True})
        until(lambda: load(server)["num_running"])
        server.signal(signal.SIGINT)
        until(lambda: ready_status(server) == 503)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert stream.join().lines[-1] == "data: [DONE]"


def test_an_engine_crash_is_told_and_mended(tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    with FakeServer(tmp_path, engine={"step": 0.01, "gate": str(gate)}) as server:
        stream = Background(server, ENDLESS | {"stream": True})
        until(lambda: load(server)["num_running"])
        gate.unlink()
        response = httpx.post(f"{server.url}/v1/completions", json={"prompt": [POISON_EXIT]})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_died"
        assert ready_status(server) == 503
        lines = stream.join().lines
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["error"]["code"] == "engine_died"
        assert json.loads(lines[-3][6:])["choices"][0]["finish_reason"] == "error"
        refused = httpx.post(f"{server.url}/v1/completions", json=ENDLESS)
        assert refused.status_code == 503
        gate.touch()
        until(lambda: ready_status(server) == 200)
        # Before it has made a step: nobody would send one to a server that looks full.
        report = load(server)
        assert (report["num_running"], report["kv_blocks_used"]) == (0, 0)
        assert report["kv_blocks_total"] == 1000
        body = {"prompt": "a", "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'headrace_engine_restarts_total{model="fake"} 1' in metrics


def test_a_stuck_engine_is_replaced_while_probes_answer(tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    with FakeServer(tmp_path, engine={"gate": str(gate)}, watchdog_timeout=0.6) as server:
        gate.unlink()
        stuck = Background(server, {"prompt": [POISON_HANG]})
        until(lambda: ready_status(server) == 503)
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert stuck.join().response.status_code == 500
        gate.touch()
        until(lambda: ready_status(server) == 200)


def test_a_full_queue_is_429_before_any_work(tmp_path):
    last = tmp_path / "last"
    engine = {"last": str(last), "max_num_seqs": 1}
    with FakeServer(tmp_path, engine=engine, max_queued_requests=2) as server:
        running = [Background(server, {"prompt": "a", "max_tokens": 60, "stream": True})]
        until(lambda: load(server)["num_running"])
        running += [Background(server, {"prompt": "b", "max_tokens": 2}) for _ in range(2)]
        until(lambda: load(server)["num_waiting"] == 2)
        refused = httpx.post(f"{server.url}/v1/completions", content=b"not even JSON")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["type"] == "rate_limit_error"
        unready = httpx.get(f"{server.url}/readyz")
        assert unready.status_code == 503
        assert "queue is full: 2 requests" in unready.json()["reason"]
        assert httpx.get(f"{server.url}/livez").status_code == 200
        last.touch()
        assert all(r.join().response.status_code == 200 for r in running)
        assert ready_status(server) == 200
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'headrace_requests_rejected_total{reason="queue"} 1' in metrics


def test_the_bound_on_tokens(tmp_path):
    last = tmp_path / "last"
    engine = {"last": str(last), "max_num_seqs": 1}
    with FakeServer(tmp_path, engine=engine, max_queued_tokens=100) as server:
        running = [Background(server, {"prompt": "a", "max_tokens": 60})]
        until(lambda: load(server)["num_running"])
        running.append(Background(server, {"prompt": "x" * 300, "max_tokens": 1}))
        until(lambda: load(server)["num_waiting"] == 1)
        body = {"prompt": "x" * 300, "max_tokens": 1}
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 429
        last.touch()
        assert all(r.join().response.status_code == 200 for r in running)


def test_a_start_that_fails_ends_with_the_root_cause(tmp_path):
    with FakeServer(
        tmp_path, wait=False, engine={"fail_start": "This file holds no model."}
    ) as server:
        assert server.wait() == 2
    assert server.lines[-1].endswith("failed in phase 'build': This file holds no model.")


def test_a_tokenizer_that_surprises_its_reader_ends_the_start_too(tmp_path):
    broken = write_byte_tokenizer(tmp_path / "broken")
    (broken / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": {}}}')
    with FakeServer(tmp_path, wait=False, engine={"tokenizer": str(broken)}) as server:
        assert server.wait() != 0
        assert "tokenizer could not be loaded" in server.lines[-1]


def test_a_port_that_is_taken_names_its_holder(tmp_path, server):
    port = int(server.url.rsplit(":", 1)[1])
    with FakeServer(tmp_path, wait=False, port=port) as second:
        assert second.wait() == 2
    assert f"Port {port} on 127.0.0.1 is in use by process {server.process.pid}" in second.lines[-1]


def test_loading_is_told_and_requests_wait_elsewhere(tmp_path):
    gate = tmp_path / "gate"
    with (
        held_port() as port,
        FakeServer(tmp_path, wait=False, port=port, engine={"gate": str(gate)}) as server,
    ):
        url = f"http://127.0.0.1:{port}"
        until(lambda: _status(f"{url}/livez") == 200)
        assert _status(f"{url}/readyz") == 503
        assert httpx.post(f"{url}/v1/completions", json=ENDLESS).status_code == 503
        assert httpx.get(f"{url}/load").json()["state"] == "loading"
        assert httpx.get(f"{url}/v1/models").json()["data"] == []
        assert httpx.get(f"{url}/metrics").status_code == 200
        gate.touch()
        server.wait_ready()
        assert _status(f"{url}/readyz") == 200


def _status(url):
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None


def test_the_engine_is_gone_when_the_server_is_killed(tmp_path):
    with FakeServer(tmp_path) as server:
        children = _children(server.process.pid)
        assert len(children) == 1
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: not Path(f"/proc/{children[0]}").exists())


def _children(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def test_a_peer_sees_token_ids_and_can_continue_elsewhere(server):
    peer = {"x-headrace-peer": PEER_TOKEN}
    body = {"prompt": "hello", "max_tokens": 8, "stream": True}
    response = httpx.post(f"{server.url}/v1/completions", json=body, headers=peer)
    seed = int(response.headers["x-headrace-seed"])
    ids, text = _peer_stream(response.text)
    assert bytes(ids).decode() == text
    body |= {"prior_output_ids": ids[:3], "seed": seed}
    response = httpx.post(f"{server.url}/v1/completions", json=body, headers=peer)
    rest, rest_text = _peer_stream(response.text)
    assert ids[:3] + rest == ids
    assert text == text[:3] + rest_text
    stranger = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "stream": True})
    assert ": headrace" not in stranger.text
    assert "x-headrace-seed" not in stranger.headers


def _peer_stream(text):
    ids, words = [], []
    for event in text.split("\n\n"):
        for line in event.split("\n"):
            if line.startswith(": headrace "):
                ids += json.loads(line.removeprefix(": headrace "))["token_ids"]
            elif line.startswith("data: {"):
                words.append(json.loads(line[6:])["choices"][0]["text"])
    return ids, "".join(words)


def test_kv_events_are_published_where_the_operator_says(tmp_path):
    endpoint = f"ipc://{tmp_path}/kv"
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
    subscriber.connect(endpoint)
    engine = {"step": 0.01}
    try:
        with FakeServer(tmp_path, engine=engine, kv_events=endpoint, kv_events_topic="kv@a@b") as s:
            body = {"prompt": "a", "max_tokens": 5}
            while not subscriber.poll(50):
                assert httpx.post(f"{s.url}/v1/completions", json=body).status_code == 200
            topic, sequence, payload = subscriber.recv_multipart()
    finally:
        context.destroy(linger=0)
    assert (topic, len(sequence)) == (b"kv@a@b", 8)
    _, events, _ = msgspec.msgpack.decode(payload)
    assert [event[0] for event in events] in (["AllBlocksCleared"], ["BlockStored", "BlockRemoved"])


def test_an_idle_server_sleeps(server):
    """Processor time of both processes, not wall time: a busy machine does not fail it."""
    pids = [server.process.pid, *_children(server.process.pid)]
    until(lambda: load(server)["num_running"] == 0)

    def is_asleep():
        """In a second: what it still did after the last request is not its sleep."""
        before = [_cpu_seconds(pid) for pid in pids]
        time.sleep(1.0)
        used = [_cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
        return sum(used) < 0.1

    until(is_asleep, "it sleeps", 20.0)


def _cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def test_probes_are_quick_while_many_streams_run(tmp_path):
    last = tmp_path / "last"
    engine = {"max_num_seqs": 64, "step": 0.005, "last": str(last)}
    with FakeServer(tmp_path, engine=engine) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            body = {"prompt": "a", "max_tokens": 100, "stream": True}
            streams = [
                asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(32)
            ]
            statuses = []
            num_running = 0
            while num_running < 32 or len(statuses) < 100:
                statuses.append((await client.get("/readyz")).status_code)
                statuses.append((await client.get("/livez")).status_code)
                num_running = (await client.get("/load")).json()["num_running"]
            last.touch()
            answers = await asyncio.gather(*streams)
        assert set(statuses) == {200}
        assert all(a.text.endswith("data: [DONE]\n\n") for a in answers)
