"""A gateway process over real replica processes that are killed, stopped, and come back."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess, cpu_seconds, load, resident, settle, until
from tests.support.tiny_models import make_tiny_llama

TOKEN = "between machines"
T = TypeVar("T")
NUM_TOKENS = 150


def start_replica(model: Path) -> ServeProcess:
    return ServeProcess(
        str(model), "--port", "0", "--threads", "1", "--trusted-peer-token", TOKEN,
        "--served-model-name", "tiny",
    )  # fmt: skip


def write_fleet(file: Path, *replicas: ServeProcess, extra: str = "") -> Path:
    lines = [f"  - {{url: '{replica.url}', peer_token: '{TOKEN}'}}" for replica in replicas]
    gateway = "gateway:\n  port: 0\n  timeouts: {between_tokens: 3s, first_token: 30s}\n"
    file.write_text(
        gateway + "routing: {policy: round_robin}\n" + extra + "replicas:\n" + "\n".join(lines)
    )
    return file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pair(model: Path) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    with start_replica(model) as first, start_replica(model) as second:
        yield first.wait_ready(), second.wait_ready()


@contextlib.contextmanager
def gateway_over(
    file: Path, *replicas: ServeProcess, prelude: str = ""
) -> Iterator[GatewayProcess]:
    with GatewayProcess(write_fleet(file, *replicas), prelude=prelude) as running:
        running.wait_ready()
        until(lambda: len(fleet_of(running)) == 1, "its replicas tell their model")
        until(lambda: httpx.get(f"{running.url}/readyz").status_code == 200, "it is ready")
        yield running


def fleet_of(running: GatewayProcess) -> list[str]:
    """The models that it knows."""
    return [card["id"] for card in httpx.get(f"{running.url}/v1/models").json()["data"]]


@pytest.fixture
def gateway(pair: tuple[ServeProcess, ServeProcess], tmp_path: Path) -> Iterator[GatewayProcess]:
    with gateway_over(tmp_path / "fleet.yaml", *pair) as running:
        yield running


class Story:
    """One stream, and what came of it."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._number = number
        self.text = ""
        self.begun = asyncio.Event()
        self.ids: set[str] = set()
        self.finish: list[str] = []
        self.usage: Any = None
        self.error: Any = None
        self.is_done = False

    async def run(self, client: httpx.AsyncClient) -> "Story":
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"Story number {self._number}"}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0.9,
            "seed": self._number,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    self.is_done = True
                elif line.startswith("data: "):
                    self._note(json.loads(line[6:]))
                else:
                    assert not line
        return self

    def _note(self, chunk: dict[str, Any]) -> None:
        self.error = self.error or chunk.get("error")
        self.ids.add(str(chunk.get("id")))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ()):
            self.text += choice["delta"].get("content") or ""
            if self.text:
                self.begun.set()
            self.finish += [choice["finish_reason"]] if choice["finish_reason"] else []

    @property
    def told(self) -> tuple[object, ...]:
        """What a client can see."""
        usage = (self.usage["prompt_tokens"], self.usage["completion_tokens"])
        return self.text, len(self.ids), self.finish, usage, self.error, self.is_done


def in_loop(work: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
    async def run() -> T:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
            return await work(client)

    return asyncio.run(run())


def stories(
    url: str, count: int, disturb: Callable[[], None] | None = None
) -> list[tuple[object, ...]]:
    """So many streams at once; `disturb` is called once two of them have text."""

    async def work(client: httpx.AsyncClient) -> list[tuple[object, ...]]:
        made = [Story(url, number) for number in range(count)]
        tasks = [asyncio.ensure_future(story.run(client)) for story in made]
        if disturb is not None:
            await asyncio.gather(*(story.begun.wait() for story in made[:2]))
            assert not all(task.done() for task in tasks)
            disturb()
        return [story.told for story in await asyncio.gather(*tasks)]

    return in_loop(work)


def test_streams_outlive_replicas_and_end_as_if_nothing_had_been(pair, model, tmp_path):
    first = pair[0]
    with (
        start_replica(model) as second,
        gateway_over(tmp_path / "fleet.yaml", first, second.wait_ready()) as gateway,
    ):
        undisturbed = stories(gateway.url, 64)
        assert all(told[0] and told[1] == 1 and told[5] for told in undisturbed)
        # It hangs: neither its streams nor its probes go on.
        stopped = stories(gateway.url, 16, lambda: second.process.send_signal(signal.SIGSTOP))
        assert stopped == undisturbed[:16]
        second.process.send_signal(signal.SIGCONT)
        until(lambda: load(second.url)["num_running"] == 0, "what was left there has ended")
        killed = stories(gateway.url, 64, second.process.kill)
        assert killed == undisturbed
        settle(first.url)


def test_a_drain_lets_streams_end(pair, gateway):
    told = stories(gateway.url, 8, lambda: gateway.process.send_signal(signal.SIGTERM))
    assert all(story[5] and story[4] is None for story in told)
    assert gateway.wait() == 0
    for replica in pair:
        settle(replica.url)


def test_reloads_disturb_no_stream(pair, gateway, tmp_path):
    file = tmp_path / "fleet.yaml"
    undisturbed = stories(gateway.url, 8)

    def reload(content: str, word: str) -> Callable[[], None]:
        def go() -> None:
            file.write_text(content)
            gateway.process.send_signal(signal.SIGHUP)
            until(lambda: any(word in line for line in gateway.lines), word)

        return go

    bad = reload("replicas: [{url: ftp://x}]", "configuration of before stays")
    assert stories(gateway.url, 8, bad) == undisturbed
    only = write_fleet(tmp_path / "other.yaml", pair[0]).read_text()
    assert stories(gateway.url, 8, reload(only, "was read again")) == undisturbed
    until(lambda: any("has left" in line for line in gateway.lines), "the other one has left")
    assert stories(gateway.url, 4) == undisturbed[:4]


BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "tokenizers", "jinja2", "llguidance"} or name.endswith("_native"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocker())
"""


def test_it_needs_no_engine_and_starts_again(pair, tmp_path):
    told = []
    for _ in range(2):
        with gateway_over(tmp_path / "fleet.yaml", *pair, prelude=BLOCK) as running:
            assert fleet_of(running) == ["tiny"]
            told.append(stories(running.url, 4))
            running.process.kill()
    assert told[0] == told[1]


def abort_many(url: str, count: int) -> None:
    """Clients that leave before, at and after the first byte."""

    async def one(number: int, gate: asyncio.Semaphore) -> None:
        body = {"model": "tiny", "prompt": f"x {number}", "max_tokens": 60, "ignore_eos": True}
        raw = json.dumps({**body, "stream": number % 3 != 0}).encode()
        host, _, port = url.removeprefix("http://").rpartition(":")
        async with gate:
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
            writer.write(head.encode() + raw[: len(raw) // (1 + (number % 5 == 0))])
            await writer.drain()
            if number % 2 and number % 5 and number % 3:
                await reader.read(1)
            writer.transport.abort()

    async def run() -> None:
        gate = asyncio.Semaphore(50)
        await asyncio.gather(*(one(number, gate) for number in range(count)))

    asyncio.run(run())


def check_aborted(gateway: GatewayProcess, pair: tuple[ServeProcess, ...], count: int) -> None:
    abort_many(gateway.url, 200)  # what is made once is made now
    until(lambda: gateway.num_clients == 0, "the clients are gone")
    before = resident(gateway.process.pid)
    abort_many(gateway.url, count)
    until(lambda: gateway.num_clients == 0, "the clients are gone")
    for replica in pair:
        settle(replica.url)
    until(lambda: gateway.num_upstream <= 2 * 64, "connections to replicas are bounded")
    assert resident(gateway.process.pid) < before + 20 * 2**20
    assert all(told[5] for told in stories(gateway.url, 4))


def test_clients_that_leave_leave_nothing(pair, gateway):
    check_aborted(gateway, pair, 1000)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_thousand_clients_that_leave_leave_nothing(pair, gateway):
    check_aborted(gateway, pair, 10_000)


def test_an_idle_fleet_costs_little(gateway):
    def is_idle() -> bool:
        """For three seconds: what it still does after its start is not its idling."""
        before = cpu_seconds(gateway.process.pid)
        time.sleep(3.0)
        return cpu_seconds(gateway.process.pid) - before < 0.3

    until(is_idle, "it costs little", 30.0)
