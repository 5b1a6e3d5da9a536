"""Who is looked at, when, and what comes of it."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.patience import PATIENCE
from tests.support.registry_fleet import REPORT, Fleet, spec

from headrace.fleet.probe import NotReadyError
from headrace.fleet.prober import Prober
from headrace.fleet.replica import Replica, Report, Standing
from headrace.fleet.upstream.failure import FailureKind, UpstreamError


class Probing:
    """A prober whose looks are what a test says."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.answers: dict[str, Report | Exception] = {}
        self.numbers: list[int] = []
        self.looked = asyncio.Event()
        self.prober = Prober(fleet.registry, fleet.clock, self._probe)

    async def _probe(self, replica: Replica, patience: float, number: int) -> Report:
        self.numbers.append(number)
        self.looked.set()
        answer = self.answers.get(replica.id, REPORT)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def looks(self, count: int = 1) -> None:
        """Until so many more looks are over."""
        goal = len(self.numbers) + count
        async with asyncio.timeout(PATIENCE):
            while len(self.numbers) < goal:
                self.looked.clear()
                await self.looked.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_probes_decide_with_hysteresis():
    fleet = Fleet(probe_period=600.0, probe_failures=3, probe_successes=2)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)

    async def look(count):
        for _ in range(count):
            probing.prober.look_now(a)
            await probing.looks(1)

    probing.prober.sync()
    await probing.looks(1)
    assert a.standing(0.0) is Standing.UNREADY
    await look(1)
    assert a.standing(0.0) is Standing.READY
    probing.answers["a"] = UpstreamError(FailureKind.CONNECT, "refused")
    await look(2)
    assert a.ready_since is not None
    await look(1)
    assert a.ready_since is None
    assert "refused" in a.reason
    await probing.prober.close()


@pytest.mark.parametrize("error", [NotReadyError("loading"), ValueError("a bug")])
async def test_a_certain_word_counts_at_once(error):
    fleet = Fleet(probe_period=0.005, probe_failures=2)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(2)
    probing.answers["a"] = error
    await probing.looks(1 if isinstance(error, NotReadyError) else 3)
    assert a.ready_since is None
    await probing.looks(2)
    assert probing.numbers[-1] == 0  # whatever comes back is asked for everything
    probing.answers.clear()
    await probing.looks(2)
    assert a.ready_since is not None
    await probing.prober.close()


async def test_a_failed_request_brings_the_next_look():
    fleet = Fleet(probe_period=60.0)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(1)
    fleet.fail(a)
    assert a.standing(fleet.clock.monotonic()) is Standing.EJECTED
    probing.answers["a"] = NotReadyError("died")
    probing.prober.look_now(a)
    await probing.looks(1)
    assert a.ready_since is None
    probing.answers.clear()
    probing.prober.look_now(a)
    await probing.looks(1)
    assert a.standing(fleet.clock.monotonic()) is Standing.READY  # a new one: tried at once
    await probing.prober.close()


async def test_nobody_there_is_known_at_once():
    fleet = Fleet(probe_period=60.0)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(1)
    probing.prober.note_unreachable(a, "refused")
    assert a.ready_since is None
    await probing.looks(1)
    assert a.ready_since is not None
    fleet.registry.reconcile([])
    probing.prober.sync()
    probing.prober.note_unreachable(a, "refused")  # it has left: nobody minds
    await probing.prober.close()


async def test_tasks_come_and_go_with_replicas():
    fleet = Fleet(probe_period=0.005)
    probing = Probing(fleet)
    fleet.registry.on_change = probing.prober.sync
    fleet.registry.reconcile([spec("a"), spec("b")])
    await probing.looks(4)
    fleet.registry.reconcile([spec("b"), spec("c")])
    await probing.looks(4)
    names = {t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("probe")}
    assert names == {"probe b", "probe c"}
    await probing.prober.close()
    await asyncio.sleep(0)
    assert not any(t.get_name().startswith("probe") for t in asyncio.all_tasks())


async def test_a_replica_in_doubt_is_asked_for_everything():
    """It has just said that it does not have a model: what it told a moment ago is not true any more."""
    fleet = Fleet(probe_period=60)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks()
    probing.prober.look_now(a)
    await probing.looks()
    assert probing.numbers == [0, 1]
    probing.prober.look_now(a, at_all=True)
    await probing.looks()
    assert probing.numbers == [0, 1, 0]
    probing.prober.look_now(a)
    await probing.looks()
    assert probing.numbers == [0, 1, 0, 3]
    await probing.prober.close()


async def test_probes_go_on_whoever_fails_to_hear_of_them():
    fleet = Fleet(probe_period=0.002)

    def fail() -> None:
        raise RuntimeError("a listener")

    fleet.registry.reconcile([spec("a")])
    fleet.registry.on_change = fail
    probing = Probing(fleet)
    probing.prober.sync()
    await probing.looks(3)
    await probing.prober.close()


async def test_a_replica_that_runs_for_less_long_than_before_has_started_again():
    """Between two looks, so that nothing else shows it."""
    fleet = Fleet(probe_period=0.002)
    fleet.registry.reconcile([spec("a")])
    (a,) = fleet.registry
    probing, restarted = Probing(fleet), []
    probing.prober.on_restart = restarted.append
    probing.prober.sync()
    for uptime in (10.0, None, 11.0, 11.0, None, 12.0):
        probing.answers["a"] = replace(REPORT, uptime=uptime)
        await probing.looks(2)
    assert not restarted
    probing.answers["a"] = replace(REPORT, uptime=0.5)
    await probing.looks(3)
    assert restarted == [a]
    await probing.prober.close()
