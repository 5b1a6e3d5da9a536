"""Which engine a process serves, and in which state; changed by messages from its server only.

    empty -> loading -> ready -> draining -> parked -> ready ...

`drain` may be skipped, `resume` undoes it, and `load` replaces whatever is there.
"""

import gc
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.config.engine import EngineConfig
from headrace.core.events import TokenEvent
from headrace.core.request import Request
from headrace.core.stats import EngineStats, ReplicaState, StepStats
from headrace.engine.messages import AdapterAnswer, AdapterOrder

#: Makes an engine, which is announced. Raises LoadFailedError when that was told to the server already.
Build = Callable[[EngineConfig], "EngineLike"]


class LoadFailedError(Exception):
    """There is no engine, and the server knows why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


class EngineLike(Protocol):
    """What the loop needs of an engine."""

    last_step: StepStats | None

    def add(self, request: Request) -> list[TokenEvent]: ...
    def cancel(self, request_id: str, index: int | None = None) -> list[TokenEvent]: ...
    def has_work(self) -> bool: ...
    def wake_at(self) -> float | None: ...
    def step(self) -> list[TokenEvent]: ...
    def fail_all(self, reason: str) -> list[TokenEvent]: ...
    def check_integrity(self) -> list[str]: ...
    def take_kv_events(self) -> Sequence[object]: ...
    def order_adapter(self, order: AdapterOrder) -> None: ...
    def take_adapter_answers(self) -> Sequence[AdapterAnswer]: ...
    def stats(self) -> EngineStats: ...
    def park(self) -> None: ...
    def close(self) -> None: ...


class Lifecycle:
    """Holds the only reference to the engine, so that unloading gives its memory back."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self.engine: EngineLike = _NoEngine()
        self.state = ReplicaState.EMPTY

    @property
    def refusal(self) -> str | None:
        """Why new requests are not taken, in one sentence; None when they are."""
        return None if self.state is ReplicaState.READY else f"The engine is {self.state.value}."

    def drain(self) -> None:
        """New requests are refused from now on; those that run are the loop's to finish."""
        if self.state is ReplicaState.READY:
            self.state = ReplicaState.DRAINING

    def park(self) -> None:
        """Give back all memory but the weights'. Nothing may run any more."""
        if self.state in (ReplicaState.READY, ReplicaState.DRAINING):
            self.engine.park()
            self.state = ReplicaState.PARKED
            gc.collect()

    def resume(self) -> None:
        """Take requests again; memory is taken as they need it."""
        if self.state in (ReplicaState.DRAINING, ReplicaState.PARKED):
            self.state = ReplicaState.READY

    def unload(self) -> None:
        """Give everything back. Nothing may run any more."""
        self.engine.close()
        self.engine = _NoEngine()
        self.state = ReplicaState.EMPTY
        # A ready engine was hidden from the collector; references in a circle must not keep it.
        gc.unfreeze()
        gc.collect()

    def load(self, config: EngineConfig) -> None:
        """Build an engine in the place of what is there. Raises what `build` raises; then it is empty."""
        if self.state is not ReplicaState.EMPTY:
            self.unload()
        self.engine = self._build(config)
        self.state = ReplicaState.READY


class _NoEngine:
    """Stands where an engine was: nothing runs, nothing is held."""

    last_step: StepStats | None = None

    def add(self, request: Request) -> list[TokenEvent]:
        return []  # the loop refuses requests before they come here

    def cancel(self, request_id: str, index: int | None = None) -> list[TokenEvent]:
        return []

    def has_work(self) -> bool:
        return False

    def wake_at(self) -> float | None:
        return None

    def step(self) -> list[TokenEvent]:
        return []

    def fail_all(self, reason: str) -> list[TokenEvent]:
        return []

    def check_integrity(self) -> list[str]:
        return []

    def take_kv_events(self) -> Sequence[object]:
        return ()

    def order_adapter(self, order: AdapterOrder) -> None:
        pass  # as for requests

    def take_adapter_answers(self) -> Sequence[AdapterAnswer]:
        return ()

    def stats(self) -> EngineStats:
        return EngineStats()

    def park(self) -> None:
        pass

    def close(self) -> None:
        pass
