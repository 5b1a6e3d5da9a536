"""Notes of replicas held against real processes: adoption, crashes, stops, and notes that lie."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from tests.support.fake_clock import FakeClock
from tests.support.local_fleet import (
    FAULTY,
    POOL,
    STUBBORN,
    end_session,
    machine,
    pid_of,
    session_of,
    swept,
    wait_gone,
)
from tests.support.patience import PATIENCE
from tests.support.processes import until

from headrace.config.fleet.pools import PoolConfig, ResourcesConfig
from headrace.config.fleet.replicas import Capability, Price
from headrace.core.errors import ConfigError, DriverError
from headrace.core.stats import ReplicaRole
from headrace.fleet.drivers.local.process import command_of
from headrace.fleet.drivers.protocol import InstanceState
from headrace.fleet.drivers.revision import revision_of

RUNNING, STOPPING, FAILED = InstanceState.RUNNING, InstanceState.STOPPING, InstanceState.FAILED


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "fleet") as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_new_controller_knows_what_the_last_one_started(
    directory: Path, clock: FakeClock
) -> None:
    pool = replace(
        POOL, role=ReplicaRole.DECODE, version="v7", labels={"zone": "a"},
        capabilities=(Capability.TOOLS,), price=Price(input=2.0),
    )  # fmt: skip
    started = machine(directory, clock).start(pool)
    (adopted,) = machine(directory, clock).list()
    assert adopted == started
    assert adopted.state is RUNNING
    assert adopted.revision == revision_of(pool)
    assert adopted.spec is not None
    assert adopted.spec.id == adopted.id
    assert adopted.spec.role is ReplicaRole.DECODE
    assert adopted.spec.version == adopted.version == "v7"
    assert adopted.spec.labels == {"zone": "a"}
    assert adopted.spec.capabilities == (Capability.TOOLS,)
    assert adopted.spec.price == Price(input=2.0)
    assert adopted.started == clock.wall()


def test_its_socket_listens_before_it_runs(directory: Path, clock: FakeClock) -> None:
    spec = machine(directory, clock).start(POOL).spec
    assert spec is not None
    port = urlsplit(spec.url).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=PATIENCE):
        pass


def test_secrets_stand_in_no_command_line_and_no_note(directory: Path, clock: FakeClock) -> None:
    found = machine(directory, clock)
    instance = found.start(POOL)
    assert instance.spec is not None
    token = str(instance.spec.peer_token)
    assert len(token) > 20
    pid = pid_of(found, instance.id)
    until(lambda: len(session_of(pid)) == 2, "it has begun")
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode()
    assert f"HEADRACE_TRUSTED_PEER_TOKEN={token}" in environment
    for text in (" ".join(command_of(pid)), (directory / f"{instance.id}.json").read_text()):
        assert token not in text
        assert "chat" in text or "tiny" in text
    assert (directory / "peer-token").stat().st_mode & 0o777 == 0o600
    assert (directory / f"{instance.id}.json").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


def test_what_is_the_gateway_s_own_is_not_handed_on(
    directory: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ADMIN_KEY", "of-the-operator")
    monkeypatch.setenv("HEADRACE_API_KEYS", "of-clients")
    found = machine(directory, clock)
    pid = pid_of(found, found.start(POOL).id)
    until(lambda: len(session_of(pid)) == 2, "it has begun")
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"HEADRACE_TRUSTED_PEER_TOKEN" in environment
    assert b"of-the-operator" not in environment
    assert b"of-clients" not in environment


def test_a_crash_is_told_with_the_end_of_its_log_until_it_is_cleared(
    directory: Path, clock: FakeClock
) -> None:
    found = machine(directory, clock, FAULTY)
    started = found.start(POOL)
    wait_gone(pid_of(found, started.id))
    (failed,) = found.list()
    assert failed.state is FAILED
    assert failed.spec is None
    assert "exit code 3" in failed.reason
    assert "no such model" in failed.reason
    assert machine(directory, clock).list() == [failed]
    assert found.stop(started.id, 5.0) is None
    assert found.list() == []
    assert not list(directory.glob(f"{started.id}*"))


def test_a_crashed_replica_leaves_nothing_of_its_session(directory: Path, clock: FakeClock) -> None:
    found = machine(directory, clock)
    pid = pid_of(found, found.start(POOL).id)
    until(lambda: len(session_of(pid)) == 2, "its child runs")
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    (failed,) = found.list()
    assert "SIGKILL" in failed.reason
    until(lambda: not session_of(pid), "its child is gone")


def test_one_that_ends_when_told_is_forgotten(directory: Path, clock: FakeClock) -> None:
    found = machine(directory, clock)
    started = found.start(POOL)
    pid = pid_of(found, started.id)
    until(lambda: len(session_of(pid)) == 2, "its child runs")
    assert found.stop(started.id, 30.0) == clock.wall() + 30.0
    wait_gone(pid)
    assert found.list() == []
    until(lambda: not session_of(pid), "its child is gone")
    assert found.stop(started.id, 30.0) is None


def test_one_that_does_not_end_is_killed_when_its_time_is_over_by_whoever_looks(
    directory: Path, clock: FakeClock
) -> None:
    found = machine(directory, clock, STUBBORN)
    started = found.start(POOL)
    pid = pid_of(found, started.id)
    until(lambda: len(session_of(pid)) == 2, "it has begun")
    found.stop(started.id, 30.0)
    clock.advance(29.0)
    next_one = machine(directory, clock)
    assert [i.state for i in next_one.list()] == [STOPPING]
    clock.advance(1.5)
    next_one.list()
    wait_gone(pid)
    assert next_one.list() == []


def test_a_second_stop_tells_nothing_again_and_can_only_shorten(
    directory: Path, clock: FakeClock
) -> None:
    found = machine(directory, clock, STUBBORN)
    started = found.start(POOL)
    pid = pid_of(found, started.id)
    until(lambda: len(session_of(pid)) == 2, "it has begun")
    first = found.stop(started.id, 30.0)
    assert found.stop(started.id, 90.0) == first
    assert found.stop(started.id, 10.0) == clock.wall() + 10.0
    found.stop(started.id, 0.0)
    wait_gone(pid)


def test_a_controller_that_is_killed_at_the_gate_leaves_no_server(
    directory: Path, tmp_path: Path
) -> None:
    """Its child has been started and is not noted yet."""
    code = """
import os, signal, sys
from pathlib import Path
from tests.support.local_fleet import POOL, machine
from headrace.core.clock import SystemClock
from headrace.fleet.drivers.local.record import Records
def die(self, record):
    Path(sys.argv[2]).write_text(str(record.pid))
    os.kill(os.getpid(), signal.SIGKILL)
Records.write = die
machine(Path(sys.argv[1]), SystemClock()).start(POOL)
"""
    told = tmp_path / "pid"
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory), str(told)],
        timeout=PATIENCE, check=False, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    wait_gone(int(told.read_text()))
    assert machine(directory, FakeClock()).list() == []


def rewrite(directory: Path, replica_id: str, **changes: object) -> None:
    file = directory / f"{replica_id}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def ticks() -> int:
    """Clock ticks since the machine's start."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("lie", ["pid", "start", "command"])
def test_a_note_of_another_process_is_not_believed_and_kills_nobody(
    directory: Path, clock: FakeClock, lie: str
) -> None:
    found = machine(directory, clock)
    victim = found.start(POOL)
    pid = pid_of(found, victim.id)
    until(lambda: len(session_of(pid)) == 2, "it runs")
    real = json.loads((directory / f"{victim.id}.json").read_text())
    until(lambda: ticks() > real["start"], "the next process starts at another tick")
    other = found.start(POOL)
    note = json.loads((directory / f"{other.id}.json").read_text())
    end_session(note["pid"])
    wait_gone(note["pid"])
    lies = {
        "pid": {"pid": real["pid"]},
        "start": {"pid": real["pid"], "start": real["start"] + 1, "command": real["command"]},
        "command": {"pid": real["pid"], "start": real["start"], "command": ["/bin/sh"]},
    }
    rewrite(directory, other.id, **lies[lie])
    states = {i.id: i.state for i in found.list()}
    assert states == {victim.id: RUNNING, other.id: FAILED}
    found.stop(other.id, 0.0)
    assert {i.id: i.state for i in found.list()} == {victim.id: RUNNING}
    assert len(session_of(pid)) == 2


def test_a_note_of_before_the_machine_started_again_is_forgotten(
    directory: Path, clock: FakeClock
) -> None:
    found = machine(directory, clock)
    started = found.start(POOL)
    pid = pid_of(found, started.id)
    rewrite(directory, started.id, boot="another")
    assert found.list() == []
    assert session_of(pid)
    end_session(pid)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"id": 3}', "\x00" * 100, "[" * 5000, '{"id":"chat-1","pid":1}', "x" * 70_000],
)
def test_garbage_is_left_alone(directory: Path, clock: FakeClock, text: str) -> None:
    found = machine(directory, clock)
    (directory / "chat-1.json").write_text(text)
    assert found.list() == []
    assert found.stop("chat-1", 1.0) is None
    assert found.describe("chat-1") is None
    assert (directory / "chat-1.json").exists()


def test_a_note_of_a_newer_release_is_read_and_its_address_comes_from_its_port(
    directory: Path, clock: FakeClock
) -> None:
    found = machine(directory, clock)
    started = found.start(POOL)
    rewrite(directory, started.id, spec={"url": "http://elsewhere", "colour": "red"}, mood="good")
    (seen,) = found.list()
    assert seen.spec is not None
    assert started.spec is not None
    assert seen.spec.url == started.spec.url
    assert seen.spec.peer_token == started.spec.peer_token
    rewrite(directory, started.id, spec={"url": "http://elsewhere:1", "id": "x", "api_key": "k"})
    (seen,) = found.list()
    assert seen.spec is not None
    assert (seen.spec.url, seen.spec.id, seen.spec.api_key) == (started.spec.url, started.id, None)


@pytest.mark.parametrize("replica_id", ["", "../x", "a/b", "A", ".hidden", "x" * 90, "a\n"])
def test_ids_are_no_paths(directory: Path, clock: FakeClock, replica_id: str) -> None:
    found = machine(directory, clock)
    assert found.stop(replica_id, 1.0) is None
    assert found.describe(replica_id) is None


def test_links_are_not_followed(directory: Path, clock: FakeClock, tmp_path: Path) -> None:
    found = machine(directory, clock)
    started = found.start(POOL)
    note = directory / f"{started.id}.json"
    note.rename(tmp_path / "moved")
    note.symlink_to(tmp_path / "moved")
    assert found.list() == []


def test_a_directory_that_is_not_ours_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(DriverError, match="directory of this user's own"):
        machine(tmp_path / "link", clock)
    (tmp_path / "file").write_text("")
    with pytest.raises(DriverError, match="cannot be made"):
        machine(tmp_path / "file", clock)


def test_a_token_that_others_can_read_is_refused(directory: Path, clock: FakeClock) -> None:
    machine(directory, clock)
    (directory / "peer-token").chmod(0o644)
    with pytest.raises(DriverError, match="only this user may read"):
        machine(directory, clock)
    (directory / "peer-token").unlink()
    (directory / "peer-token").touch(0o600)
    with pytest.raises(DriverError, match="holds no token"):
        machine(directory, clock)


def test_replicas_are_tied_to_the_cpus_that_fewest_have(directory: Path, clock: FakeClock) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    found = machine(directory, clock)
    pool = replace(POOL, resources=ResourcesConfig(cpus=1))
    pids = [pid_of(found, found.start(pool).id) for _ in cpus]
    tied = [os.sched_getaffinity(pid) for pid in pids]
    assert sorted(tied, key=min) == [{cpu} for cpu in cpus]
    until(lambda: len(session_of(pids[0])) == 2, "it has begun")
    assert "--threads=1" in command_of(pids[0])
    free = pid_of(found, found.start(POOL).id)
    assert os.sched_getaffinity(free) == set(cpus)


def test_a_long_log_keeps_its_end(directory: Path, clock: FakeClock) -> None:
    found = machine(directory, clock)
    started = found.start(POOL)
    log = directory / f"{started.id}.log"
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(20_000)))
    found.list()
    assert log.stat().st_size <= 16 * 1024
    described = found.describe(started.id)
    assert described is not None
    assert described["last_lines"].splitlines()[-1] == "line 19999"


def test_flags_that_a_server_would_refuse_are_named(directory: Path, clock: FakeClock) -> None:
    found = machine(directory, clock)
    for serve, words in (
        ({"port": 80}, "cannot set port"),
        ({"api-keys": "k"}, "accounts.keys"),
        ({"colour": "red"}, "'colour', which is no flag"),
        ({"max-num-seqs": 0}, "max_num_seqs|max-num-seqs"),
    ):
        with pytest.raises(ConfigError, match=words):
            found.start(PoolConfig(name="chat", model="tiny", serve=serve))  # type: ignore[arg-type]
    assert found.list() == []


def test_flags_stand_on_the_command_line(directory: Path, clock: FakeClock) -> None:
    found = machine(directory, clock)
    serve = {"max-num-seqs": 16, "prefix-cache": False, "served-model-name": "a,b"}
    pool = PoolConfig(name="chat", model="--odd", serve=serve)  # type: ignore[arg-type]
    described = found.describe(found.start(pool).id)
    assert described is not None
    words = described["command"].split()
    assert "--model=--odd" in words
    assert "--max-num-seqs=16" in words
    assert "--no-prefix-cache" in words
    assert "--served-model-name=a,b" in words
