"""What a real engine process makes of orders: drain, park, resume, load, unload."""

import asyncio
import os
import signal

import pytest
from tests.support.running_engine import Running, of, read, request, spec, tokens, until

from headrace.core.clock import SystemClock
from headrace.core.errors import UnavailableError
from headrace.core.stats import ReplicaState
from headrace.engine.failure import EngineStartError
from headrace.engine.launch import launch


async def test_an_engine_drains_parks_and_resumes_by_message():
    async with Running("fake?step=0.01") as client:
        stream = client.submit(request(max_tokens=20))
        client.drain()
        assert client.state is ReplicaState.DRAINING
        with pytest.raises(UnavailableError, match="The engine is draining"):
            client.submit(request("late"))
        assert len(tokens(await read(stream))) == 20
        pid = client.pid
        await client.park()
        assert client.state is ReplicaState.PARKED
        assert client.unready_reason == "The engine is parked."
        await client.resume()
        assert client.state is ReplicaState.READY
        assert (client.pid, client.num_restarts) == (pid, 0)
        assert len(tokens(await read(client.submit(request("again"))))) == 4


async def test_what_runs_when_an_engine_is_parked_is_ended():
    async with Running("fake?step=0.01") as client:
        stream = client.submit(request(max_tokens=100_000))
        await stream.next_batch()
        await client.park()
        assert (await read(stream))[-1].error == "The engine was parked."
        assert client.num_open == 0


async def test_a_restarted_engine_is_parked_again():
    async with Running() as client:
        await client.park()
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.num_restarts == 1 and client.state is ReplicaState.PARKED)


async def test_an_engine_that_ends_before_it_obeys_fails_the_order():
    async with Running("fake?step=0.05") as client:
        client.submit(request(max_tokens=100_000))
        os.kill(client.pid, signal.SIGSTOP)  # or it might obey before it is killed
        await asyncio.to_thread(os.waitid, os.P_PID, client.pid, os.WSTOPPED | os.WNOWAIT)
        parking = asyncio.create_task(client.park())
        await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError):
            await parking
        await until(lambda: client.num_restarts == 1 and client.state is ReplicaState.PARKED)


async def test_a_process_without_a_model_loads_one_by_message():
    async with Running(None) as client:
        assert (client.state, client.info) == (ReplicaState.EMPTY, None)
        assert client.unready_reason == "No model is loaded."
        with pytest.raises(UnavailableError, match="No model"):
            client.submit(request())
        pid = client.pid
        info = await client.load(of("fake?max_num_seqs=3"))
        assert (info.max_num_seqs, client.state, client.pid) == (3, ReplicaState.READY, pid)
        assert len(tokens(await read(client.submit(request())))) == 4
        await client.unload()
        assert (client.state, client.info, client.pid) == (ReplicaState.EMPTY, None, pid)
        await client.load(of("fake"))
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.num_restarts == 1 and client.state is ReplicaState.READY)
        assert client.info.max_num_seqs == 8, "it serves what its predecessor was told to"


async def test_a_load_replaces_a_model_and_ends_what_it_runs():
    async with Running("fake?step=0.01") as client:
        stream = client.submit(request(max_tokens=100_000))
        await stream.next_batch()
        info = await client.load(of("fake?max_num_seqs=5"))
        last = (await read(stream))[-1]
        assert (last.error, last.error_kind) == ("The engine was unloaded.", "UnavailableError")
        assert (info.max_num_seqs, client.num_restarts) == (5, 0)


async def test_a_load_that_fails_says_why_and_leaves_a_process_that_can_load():
    async with Running(None) as client:
        pid = client.pid
        with pytest.raises(EngineStartError, match="No such tensor type"):
            await client.load(of("fake?fail_start=No such tensor type."))
        assert (client.state, client.pid) == (ReplicaState.EMPTY, pid)
        await client.load(of("fake"))
        with pytest.raises(EngineStartError, match="No such tensor type"):
            await client.load(of("fake?fail_start=No such tensor type."))
        assert (client.state, client.pid, client.num_restarts) == (ReplicaState.EMPTY, pid, 0)


async def test_a_process_that_dies_while_it_loads_fails_the_load_and_is_replaced_by_an_empty_one():
    async with Running(None) as client:
        loading = asyncio.create_task(client.load(of("fake?start=30")))
        await until(lambda: client._phase == "build")
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineStartError, match="signal 9"):
            await loading
        await until(lambda: client.num_restarts == 1 and client.state is ReplicaState.EMPTY)


async def test_a_process_that_waits_is_told_what_to_load_when_it_is_taken():
    waiting = launch(spec(None), SystemClock())
    client = Running(None, wait=False).client
    await client.start(waiting, config=of("fake?max_num_seqs=2"))
    info = await client.wait_ready()
    assert (info.max_num_seqs, client.pid) == (2, waiting.pid)
    await client.close()
    assert client.state is ReplicaState.EMPTY
    await client.start(config=of("fake"))
    assert (await client.wait_ready()).max_num_seqs == 8
    assert client.pid != waiting.pid
    await client.close()
