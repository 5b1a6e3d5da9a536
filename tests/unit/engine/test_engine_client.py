"""A real engine process with a fake engine behind a real client."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.support import fake_engine
from tests.support.running_engine import Running, read, request, spec, tokens, until

from headrace.core.clock import SystemClock
from headrace.core.errors import UnavailableError
from headrace.core.events import FinishReason
from headrace.core.stats import ReplicaState
from headrace.engine import supervisor
from headrace.engine.client import STABLE_SECONDS, EngineClient
from headrace.engine.failure import EngineStartError, cause
from headrace.engine.launch import launch
from headrace.engine.messages import Failed, Submit


async def test_every_sequence_gets_its_tokens_and_one_end():
    async with Running() as client:
        assert client.state is ReplicaState.READY
        assert client.info.names == ("fake",)
        asked = request(n=3, max_tokens=5)
        events = [event async for event in client.submit(asked)]
        for index in range(3):
            expected = [fake_engine.token_at(asked, index, p) for p in range(5)]
            assert tokens(events, index) == expected
            assert [e.finish for e in events if e.index == index and e.finish] == ["length"]
        assert client.num_open == 0


async def test_one_message_carries_all_that_a_step_made():
    running = Running("fake?step=0.01")
    async with running as client:
        streams = [client.submit(request(f"r{i}", max_tokens=100_000)) for i in range(4)]
        await until(lambda: any(len(u.events) == 4 for u in running.updates))
        for stream in streams:
            stream.close()
        await until(lambda: client.stats.finished.get("cancelled") == 4)
        assert sum(len(u.steps) for u in running.updates) == client.stats.steps


async def test_a_closed_stream_is_cancelled_in_the_engine():
    async with Running("fake?step=0.005") as client:
        stream = client.submit(request(max_tokens=100_000))
        await stream.next_batch()
        stream.close()
        await until(lambda: client.stats.finished.get("cancelled") == 1)
        assert client.stats.num_running == 0
        assert client.num_open == 0


async def test_cancelling_one_sequence_leaves_the_others(tmp_path):
    last = tmp_path / "last"
    async with Running(f"fake?last={last}") as client:
        stream = client.submit(request(max_tokens=100, n=2))
        await stream.next_batch()
        client.cancel("r", 1)
        await until(lambda: client.stats.finished.get("cancelled") == 1)
        last.touch()
        events = [event async for event in stream]
        assert [e.finish for e in events if e.index == 1 and e.finish] == [FinishReason.CANCELLED]
        assert [e.finish for e in events if e.index == 0 and e.finish] == [FinishReason.LENGTH]


@pytest.mark.parametrize("poison", [fake_engine.POISON_ADD, fake_engine.POISON_STEP])
async def test_a_request_that_raises_in_the_engine_ends_alone_and_the_engine_goes_on(poison):
    async with Running() as client:
        pid = client.pid
        events = await read(client.submit(request("bad", ids=[poison], n=2)))
        assert {e.index for e in events if e.finish is FinishReason.ERROR} == {0, 1}
        assert tokens(await read(client.submit(request("good"))))
        assert client.pid == pid


async def test_a_crash_fails_what_runs_and_the_engine_comes_back():
    async with Running() as client:
        pid = client.pid
        bystander = client.submit(request("bystander", max_tokens=100_000))
        victim = client.submit(request("victim", ids=[fake_engine.POISON_EXIT]))
        for events in await asyncio.gather(read(bystander), read(victim)):
            assert events[-1].finish is FinishReason.ERROR
            assert events[-1].error_kind == "EngineDeadError"
        assert client.state is ReplicaState.LOADING
        assert "loading" in client.unready_reason
        with pytest.raises(UnavailableError):
            client.submit(request())
        await until(lambda: client.state is ReplicaState.READY)
        assert client.pid != pid
        assert client.unready_reason is None
        assert tokens(await read(client.submit(request("after"))))


async def test_the_watchdog_kills_an_engine_that_makes_no_step(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(supervisor, "DUMP_SECONDS", 2.0)
    hung, clock = tmp_path / "hung", JumpingClock()
    async with Running(f"fake?hung={hung}", clock=clock) as client:
        pid = client.pid
        stream = client.submit(request(ids=[fake_engine.POISON_HANG]))
        await until(hung.exists)
        clock.ahead = 1000.0
        events = await read(stream)
        assert events[-1].error_kind == "EngineDeadError"
        await until(lambda: client.state is ReplicaState.READY)
        assert client.pid != pid
    # The stacks of the stuck process say where it hung.
    assert "_misbehave" in capfd.readouterr().err


async def test_the_watchdog_sees_a_stuck_engine_that_every_client_has_left(tmp_path):
    hung, clock = tmp_path / "hung", JumpingClock()
    async with Running(f"fake?hung={hung}", clock=clock) as client:
        pid = client.pid
        stream = client.submit(request(ids=[fake_engine.POISON_HANG]))
        await until(hung.exists)
        stream.close()
        assert client.num_open == 0
        clock.ahead = 1000.0
        assert client.unready_reason
        await until(lambda: client.pid not in (None, pid) and client.state is ReplicaState.READY)


async def test_an_engine_that_waits_on_purpose_is_not_stuck():
    clock = JumpingClock()
    async with Running("fake?hold=5000", watchdog_timeout=30.0, clock=clock) as client:
        stream = client.submit(request())
        await until(lambda: client.stats.waits_until)
        clock.ahead = 4900.0
        assert client.unready_reason is None
        assert not client._is_stuck()
        clock.ahead = 50_000.0
        assert "made no step" in client.unready_reason
        clock.ahead = 0.0
        stream.close()


async def test_what_waited_on_purpose_is_answered():
    async with Running("fake?hold=0.2") as client:
        assert len(tokens(await read(client.submit(request())))) == 4


async def test_an_engine_that_has_told_all_ends_owes_nothing():
    clock = JumpingClock()
    async with Running("fake?step=0.005", watchdog_timeout=30.0, clock=clock) as client:
        stopped = client.submit(request("stopped", max_tokens=100_000, n=3))
        left = client.submit(request("left", max_tokens=100_000, n=2))
        await stopped.next_batch()
        stopped.stop_sequence("stopped", 1)
        stopped.close()
        left.close()
        await until(lambda: client.stats.finished.get("cancelled") == 5)
        clock.ahead = 10_000.0
        assert client.unready_reason is None
        assert not client._is_stuck()
        clock.ahead = 0.0


async def test_failing_restarts_wait_longer_and_longer_however_long_the_last_life_was():
    clock = JumpingClock()
    starts = []

    def launcher(_config):
        starts.append(clock.monotonic())
        if len(starts) > 1:
            raise OSError("no more processes")
        return launch(spec(), clock)

    client = EngineClient(launcher, clock, watchdog_timeout=30.0, restart_delays=(0.005, 60.0))
    await client.start()
    await client.wait_ready()
    clock.ahead = 2 * STABLE_SECONDS
    os.kill(client.pid, signal.SIGKILL)
    await until(lambda: len(starts) > 3)
    await asyncio.sleep(0.5)
    # Doubled from 5 ms on, seven or eight fit into a second; as many as 100 would, were it not.
    assert len(starts) < 15
    await client.close()


class JumpingClock(SystemClock):
    """The system's clock, put ahead."""

    ahead = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead


async def test_a_start_that_fails_is_told_with_phase_kind_and_sentence():
    running = Running("fake?fail_start=No+such+tensor+type.", wait=False)
    async with running as client:
        with pytest.raises(
            EngineStartError, match=r"phase 'build': No such tensor type\."
        ) as caught:
            await client.wait_ready()
        assert caught.value.failed.kind == "ModelLoadError"
        assert caught.value.failed.exit_code == 2
        assert "fake_engine.py" in caught.value.failed.details


@pytest.mark.parametrize("said", ["no file", "No file.", "really?", "no\n"])
def test_what_others_say_does_not_run_into_what_we_say(said):
    failed = Failed(phase="weights", kind="OSError", message=said, hint="Look there.")
    whole = str(EngineStartError(failed))
    assert re.search(r"phase 'weights': \w+( file)?[.?] Look there\.$", whole)
    assert cause(failed, None).endswith((".", "?"))


async def test_a_process_that_dies_at_start_is_told_by_its_signal():
    running = Running("fake?start=30", wait=False)
    async with running as client:
        await until(lambda: client.pid)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineStartError, match="signal 9"):
            await client.wait_ready()


async def test_signals_to_the_group_do_not_end_the_engine():
    async with Running() as client:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(client.pid, number)
        assert tokens(await read(client.submit(request())))


async def test_a_duplicate_id_is_refused_and_the_first_goes_on():
    async with Running("fake?step=0.005") as client:
        first = client.submit(request(max_tokens=100_000))
        await first.next_batch()
        client._send(Submit(request()))
        events = await read(first)
        assert events[-1].error == "Its id is in use."


async def test_finish_open_ends_streams_with_the_given_reason():
    async with Running("fake?step=0.005") as client:
        stream = client.submit(request(max_tokens=100_000))
        await stream.next_batch()
        client.finish_open(FinishReason.TIMEOUT)
        events = await read(stream)
        assert events[-1].finish is FinishReason.TIMEOUT
        await until(lambda: client.stats.num_running == 0)


async def test_the_engine_dies_with_its_server():
    code = (
        "import sys, time\n"
        "from headrace.core.clock import SystemClock\n"
        "from headrace.engine.launch import LaunchSpec, launch\n"
        f"spec = LaunchSpec(build={fake_engine.BUILD!r})\n"
        "print(launch(spec, SystemClock()).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    path = fake_engine.python_path()
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    engine_pid = int(await server.stdout.readline())
    os.kill(engine_pid, 0)
    server.kill()
    await server.wait()
    await until(lambda: not _is_running(engine_pid))


def _is_running(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
