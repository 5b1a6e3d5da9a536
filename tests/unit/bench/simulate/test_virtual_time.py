import asyncio

import pytest

from headrace.bench.simulate.virtual_time import VirtualClock, run_virtual
from headrace.core.errors import InternalError


def test_waiting_takes_no_time_and_moves_the_clock_in_order() -> None:
    clock, seen = VirtualClock(), []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, clock.monotonic()))

    async def main() -> None:
        await asyncio.gather(wait("late", 86_400.0), wait("soon", 0.25))

    run_virtual(main(), clock)
    assert [name for name, _ in seen] == ["soon", "late"]
    assert [at for _, at in seen] == pytest.approx([0.25, 86_400.0])


def test_time_outs_are_simulated_too() -> None:
    clock = VirtualClock()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.sleep(31.0)

    run_virtual(main(), clock)
    assert clock.monotonic() == pytest.approx(30.0)


def test_waiting_for_nothing_is_an_error_and_not_for_ever() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(InternalError, match="stands still"):
        run_virtual(main(), VirtualClock())
