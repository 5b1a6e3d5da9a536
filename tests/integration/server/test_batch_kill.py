"""A server that is killed in the middle of a batch: the next one goes on, and no line is lost or there twice."""

import signal
import time

import httpx
from tests.support.batches import CHAT, jsonl, line, parse
from tests.support.fake_server import FakeServer
from tests.support.patience import PATIENCE

LINES = 100
A_LIFE = 30
"""Lines that the engine answers before its server is killed, at most: or a slow test would find the batch done."""


def test_a_batch_survives_kills(tmp_path):
    batches = {"batch_dir": str(tmp_path / "kept")}
    content = jsonl(*[line(f"l{n}", seed=n, max_tokens=3) for n in range(LINES)])
    batch_id, seen = None, []
    for _ in range(20):
        engine = {"step": 0.01, "max_num_seqs": 8, "ends": A_LIFE}
        with (
            FakeServer(tmp_path, engine=engine, batches=batches) as server,
            httpx.Client(base_url=server.url) as http,
        ):
            if batch_id is None:
                form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
                file_id = http.post("/v1/files", **form).json()["id"]
                body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "1h"}
                batch_id = http.post("/v1/batches", json=body).json()["id"]
            batch = poll(http, batch_id, (seen[-1] if seen else 0) + A_LIFE // 2)
            seen.append(batch["request_counts"]["completed"])
            if batch["status"] == "completed":
                output = parse(http.get(f"/v1/files/{batch['output_file_id']}/content").content)
                break
            server.signal(signal.SIGKILL)
            server.wait()
    assert len(seen) > LINES // A_LIFE
    assert seen == sorted(seen)  # nothing that was answered was lost
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert [item["custom_id"] for item in output] == [f"l{n}" for n in range(LINES)]


def poll(http, batch_id, count):
    """The batch, once this many of its requests are answered or it has ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        batch = http.get(f"/v1/batches/{batch_id}").json()
        done = batch["request_counts"]["completed"]
        if batch["status"] == "completed" or count <= done < LINES:
            return batch
        time.sleep(0.005)
    raise AssertionError(batch)
