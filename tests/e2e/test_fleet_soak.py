"""Ten minutes of a real fleet: a burst from zero, up, down, up again, to zero and back. No request is lost.

HEADRACE_SOAK_SCALE=0.25 makes it two and a half minutes. `pytest -m soak -s` shows the decisions.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.processes import until
from tests.support.tiny_models import make_tiny_llama
from tests.support.up_process import KEY, UpProcess, no_servers_left, servers

SCALE = float(os.environ.get("HEADRACE_SOAK_SCALE", "1"))
#: Seconds at full length, clients, and seconds between an answer and a client's next request.
PHASES = (
    ("burst", 100, 16, 0.0),
    ("quiet", 200, 1, 3.0),
    ("second burst", 100, 16, 0.0),
)
ZERO_SECONDS = 200
NUM_TOKENS = 300

FLEET = """
gateway: {{port: 0, admin_keys: {key}}}
drivers: {{local: {{directory: {folder}/state}}}}
health: {{probe_period: 0.2s}}
autoscaler:
  period: 0.5s
  window: {window}s
  warmup: 1s
  decisions: {{file: {folder}/decisions.jsonl}}
  scaling: {{down_delay: {down}s, down_pause: {pause}s, zero_delay: {down}s}}
flow: {{classes: [{{name: all, max_wait: 120s}}], default_class: all}}
pools:
  - name: chat
    model: {model}
    min_replicas: 0
    max_replicas: 3
    serve: {{max-context: 512, threads: 1, max-num-seqs: 2, served-model-name: tiny}}
"""


class Crowd:
    """Clients that ask in turn; every answer is looked at."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self.answers: list[tuple[int, int]] = []
        """Status, and tokens of the answer."""
        self.faults: list[str] = []

    def run(self, seconds: float, clients: int, pause: float) -> None:
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._client, args=(end, number, pause))
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def ask(self, number: int = 0) -> None:
        body = {
            "model": "tiny", "prompt": f"Once {number}", "max_tokens": NUM_TOKENS, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        tokens, status = 0, 0
        try:
            with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=150) as got:
                status = got.status_code
                for line in got.iter_lines():
                    if line.startswith("data: {"):
                        usage = json.loads(line[6:]).get("usage") or {}
                        tokens = usage.get("completion_tokens", tokens)
        except httpx.HTTPError as error:
            self.faults.append(repr(error))
        with self._lock:
            self.answers.append((status, tokens))

    def _client(self, end: float, number: int, pause: float) -> None:
        while time.monotonic() < end:
            self.ask(number)
            time.sleep(pause)


class Watch:
    """How many servers run, sampled until the block ends."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.counts: list[int] = []

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            self.counts.append(len(servers(self._model)))

    @property
    def path(self) -> list[int]:
        """The counts, repetitions left out."""
        return [
            n for n, before in zip(self.counts, [-1, *self.counts], strict=False) if n != before
        ]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    made = make_tiny_llama(
        tmp_path / "model", hidden_size=256, intermediate_size=1024, num_layers=8
    )
    with no_servers_left(made):
        yield made


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_minutes_of_a_fleet(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "fleet.yaml"
    down, pause, window = (max(2.0, seconds * SCALE) for seconds in (40, 10, 20))
    file.write_text(
        FLEET.format(key=KEY, folder=tmp_path, model=model, down=down, pause=pause, window=window)
    )
    with UpProcess(file) as up, Watch(model) as watch:
        up.wait_up()
        crowd = Crowd(up.url)
        sizes = {}
        for name, seconds, clients, between in PHASES:
            crowd.run(seconds * SCALE, clients, between)
            sizes[name] = watch.counts[-1]
            print(f"\n{name}: {len(crowd.answers)} answers so far, {sizes[name]} replicas")
        until(lambda: not servers(model), "it sleeps", ZERO_SECONDS * max(SCALE, 0.3))
        time.sleep(2)
        began = time.monotonic()
        crowd.ask()
        print(f"woken and answered in {time.monotonic() - began:.2f} s")
        time.sleep(1)
        path = watch.path
        up.process.terminate()
        code = up.wait()
    decisions = (tmp_path / "decisions.jsonl").read_text().splitlines()
    print(f"replicas over time: {path}", f"{len(crowd.answers)} answers", *decisions, sep="\n")
    assert code == 0
    assert crowd.faults == []
    assert set(crowd.answers) == {(200, NUM_TOKENS)}
    assert path[0] == 0
    assert max(path) >= 2
    assert sizes["quiet"] < max(path), "it has shrunk"
    assert path[-2:] == [0, 1], "it has slept, and was woken"
    assert servers(model) == []
