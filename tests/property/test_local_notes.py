"""Histories of replicas on a machine: starts, crashes, stops, controllers that are killed, notes that lie.

Whatever happens: what is listed as running is a living process that was started here, every living one that nobody
stopped and whose note is whole is listed, and no other process is ever ended.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_clock import FakeClock
from tests.support.local_fleet import POOL, end_session, machine, pid_of, swept, wait_gone

from headrace.fleet.drivers.local.process import stat_of
from headrace.fleet.drivers.protocol import InstanceState

NOTES = st.one_of(
    st.binary(max_size=40),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode()),
)
CHANGES = st.dictionaries(
    st.sampled_from(["pid", "start", "boot", "command", "port", "phase", "spec", "deadline"]),
    st.one_of(
        st.integers(-5, 2**70), st.text(max_size=5), st.just([]), st.just(["bystander"]), st.none()
    ),
    min_size=1,
)
STEPS = st.lists(
    st.one_of(
        st.just(("start",)),
        st.just(("new controller",)),
        st.tuples(st.just("crash"), st.integers(0, 9)),
        st.tuples(st.just("stop"), st.integers(0, 9), st.sampled_from([0.0, 5.0])),
        st.tuples(st.just("wait"), st.floats(0.0, 9.0)),
        st.tuples(st.just("overwrite"), st.integers(0, 9), NOTES),
        st.tuples(st.just("change"), st.integers(0, 9), CHANGES),
        st.tuples(st.just("accuse"), st.integers(0, 9)),
    ),
    min_size=3,
    max_size=12,
)


class World:
    """What really happened, beside what the machine says."""

    def __init__(self, directory: Path, bystander: int) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.bystander = bystander
        self.machine = machine(directory, self.clock)
        self.pids: dict[str, int] = {}
        self.alive: set[str] = set()
        self.told: set[str] = set()
        """Told to stop, or with a note that was touched: anything may be said of them but a lie."""

    def do(self, step: tuple[object, ...]) -> None:
        match step:
            case ("start",):
                made = self.machine.start(POOL)
                self.pids[made.id] = pid_of(self.machine, made.id)
                self.alive.add(made.id)
            case ("new controller",):
                self.machine = machine(self.directory, self.clock)
            case ("wait", float(seconds)):
                self.clock.advance(seconds)
            case (str(what), int(number), *rest) if self.pids:
                self.touch(what, list(self.pids)[number % len(self.pids)], *rest)

    def touch(self, what: str, name: str, *rest: object) -> None:
        note = self.directory / f"{name}.json"
        if what == "crash":
            end_session(self.pids[name])
            wait_gone(self.pids[name])
            self.alive.discard(name)
            return
        self.told.add(name)
        if what == "stop":
            self.machine.stop(name, float(str(rest[0])))
        elif what == "overwrite" and isinstance(rest[0], bytes):
            note.write_bytes(rest[0])
        elif note.exists() and what in ("change", "accuse"):
            try:
                found = json.loads(note.read_bytes())
            except ValueError:
                return
            if isinstance(found, dict):
                stat = stat_of(self.bystander)
                assert stat is not None
                accusation = {"pid": stat.pid, "start": stat.start, "phase": "stopping"}
                changes = rest[0] if what == "change" else accusation
                assert isinstance(changes, dict)
                note.write_text(json.dumps({**found, **changes}))

    def check(self) -> None:
        listed = {i.id: i for i in self.machine.list()}
        # All is lost for one whose process is gone; zombies count as gone.
        really = {
            name
            for name, pid in self.pids.items()
            if (s := stat_of(pid)) is not None and s.is_alive
        }
        running = {i for i, found in listed.items() if found.state is InstanceState.RUNNING}
        assert running <= really
        assert self.alive - self.told <= running
        for name in self.alive - self.told:
            assert name in really
        assert set(listed) <= set(self.pids)
        assert set(self.pids) - self.alive - self.told <= {
            i for i, found in listed.items() if found.state is InstanceState.FAILED
        }


@settings(max_examples=40)
@given(steps=STEPS)
def test_nothing_is_lost_and_nobody_else_is_ended(steps: list[tuple[object, ...]]) -> None:
    with (
        tempfile.TemporaryDirectory() as made,
        subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True) as bystander,
    ):
        try:
            with swept(Path(made) / "fleet") as directory:
                world = World(directory, bystander.pid)
                for step in steps:
                    world.do(step)
                    world.check()
                    assert bystander.poll() is None
        finally:
            bystander.kill()
