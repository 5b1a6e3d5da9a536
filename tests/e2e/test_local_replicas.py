"""Real servers under the local driver: adopted by the next controller, drained, and dead with their engines."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.local_fleet import end_session, wait_gone
from tests.support.patience import PATIENCE
from tests.support.processes import Stream, until
from tests.support.tiny_models import make_tiny_llama

from headrace.config.fleet.drivers import LocalConfig
from headrace.config.fleet.pools import PoolConfig
from headrace.core.clock import SystemClock
from headrace.fleet.drivers.local.driver import LocalDriver
from headrace.fleet.drivers.protocol import Instance, InstanceState


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolConfig:
    model = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    return PoolConfig(name="chat", model=str(model), serve={"threads": 1, "max-context": 512})


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Of replicas, which are killed at the end."""
    found: list[int] = []
    yield found
    for pid in found:
        end_session(pid)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[LocalDriver]:
    made = LocalDriver(tmp_path / "fleet", LocalConfig(), SystemClock())
    yield made
    await made.close()


async def started(driver: LocalDriver, pool: PoolConfig, pids: list[int]) -> tuple[Instance, int]:
    instance = await driver.start(pool)
    described = await driver.describe(instance.id)
    assert described is not None
    pids.append(int(described["pid"]))
    return instance, pids[-1]


def url_of(instance: Instance) -> str:
    assert instance.spec is not None
    return instance.spec.url


def wait_ready(url: str) -> None:
    # The first question is answered as soon as it runs: its socket listens already.
    until(lambda: httpx.get(f"{url}/readyz").status_code == 200, "it is ready")


def ask(url: str, body: object, token: str) -> int:
    """The status of a completion that a gateway with this token asks for."""
    headers = {"x-headrace-peer": token}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code


async def listed(driver: LocalDriver) -> dict[str, InstanceState]:
    return {instance.id: instance.state for instance in await driver.list()}


async def until_listed(driver: LocalDriver, wanted: dict[str, InstanceState]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await listed(driver) != wanted:  # noqa: ASYNC110  processes tell nobody
            await asyncio.sleep(0.02)


async def test_a_stream_is_finished_before_its_replica_ends(
    driver: LocalDriver, pool: PoolConfig, pids: list[int]
) -> None:
    instance, pid = await started(driver, pool, pids)
    wait_ready(url_of(instance))
    engines = psutil.Process(pid).children(recursive=True)
    assert engines
    stream = Stream(url_of(instance), prompt="Once", max_tokens=400, model=Path(pool.model).name)
    stream.begun()
    os.kill(pid, signal.SIGSTOP)  # or it might have ended before it is looked at
    await driver.stop(instance.id, grace=PATIENCE)
    assert await listed(driver) == {instance.id: InstanceState.STOPPING}
    os.kill(pid, signal.SIGCONT)
    assert await asyncio.to_thread(lambda: stream.join().is_done)
    await until_listed(driver, {})
    wait_gone(pid, *(engine.pid for engine in engines))


async def test_another_controller_adopts_it_and_its_engine_dies_with_it(
    driver: LocalDriver, pool: PoolConfig, pids: list[int], tmp_path: Path
) -> None:
    instance, pid = await started(driver, pool, pids)
    wait_ready(url_of(instance))
    engines = psutil.Process(pid).children(recursive=True)
    another = LocalDriver(tmp_path / "fleet", LocalConfig(), SystemClock())
    assert list(await another.list()) == [instance]
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid, *(engine.pid for engine in engines))
    assert await listed(another) == {instance.id: InstanceState.FAILED}
    with pytest.raises(httpx.ConnectError):
        ask(url_of(instance), {}, "any")
    await another.stop(instance.id, grace=1)
    assert await listed(driver) == {}
    await another.close()


async def test_it_trusts_the_gateway_of_its_fleet_alone(
    driver: LocalDriver, pool: PoolConfig, pids: list[int]
) -> None:
    instance, _ = await started(driver, pool, pids)
    assert instance.spec is not None
    wait_ready(instance.spec.url)
    body = {"model": Path(pool.model).name, "prompt": [5, 6, 7], "max_tokens": 2}
    for token, status in ((str(instance.spec.peer_token), 200), ("another", 403)):
        assert ask(instance.spec.url, body, token) == status


async def test_one_whose_model_cannot_be_loaded_says_so(
    driver: LocalDriver, pids: list[int], tmp_path: Path
) -> None:
    pool = PoolConfig(name="chat", model=str(tmp_path / "nothing.gguf"))
    instance, pid = await started(driver, pool, pids)
    wait_gone(pid)
    (failed,) = await driver.list()
    assert failed.state is InstanceState.FAILED
    assert "exit code 2" in failed.reason
    assert "nothing.gguf" in failed.reason
    await driver.stop(instance.id, grace=0)
