"""Some places at replicas, and an admission in front of them."""

import asyncio
from collections.abc import Callable

from tests.support.fake_clock import FakeClock

from headrace.config.fleet.flow import FlowConfig, PriorityClass
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket
from headrace.observe import catalogue
from headrace.observe.metrics import Metrics

TWO = (
    PriorityClass(name="high", rank=1, ttft=2.0),
    PriorityClass(name="low", sheddable=True, min_share=0.0),
)


class AdmissionFleet:
    """Replicas with some places, and an admission in front of them."""

    def __init__(
        self, places: int | None = 1, draw: Callable[[], float] = lambda: 0.99, **config
    ) -> None:
        self.places = places
        self.used = 0
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.admission = Admission(
            FlowConfig(**config), self.clock, self.free, metrics=self.metrics, draw=draw
        )

    def free(self, lane: str) -> int | None:
        return None if self.places is None else max(0, self.places - self.used)

    def ticket(self, tenant: str = "a", priority: str = "standard", **fields) -> Ticket:
        return Ticket(**{"lane": "m", "tenant": tenant, "priority": priority, **fields})

    async def enter(self, *args, **fields) -> Slot:
        slot = await self.admission.acquire(self.ticket(*args, **fields))
        self.used += 1
        slot.placed()
        return slot

    def leave(self, slot: Slot) -> None:
        self.used -= 1
        slot.close()

    async def queue(self, *args, **fields) -> asyncio.Task[Slot]:
        task = asyncio.create_task(self.enter(*args, **fields))
        await asyncio.sleep(0)
        return task

    def refused(self, reason: str, priority: str = "standard") -> float:
        return self.metrics.value(catalogue.FLOW_REFUSED, ("m", priority, reason))

    def assert_idle(self) -> None:
        assert self.admission.waiting.is_empty
        assert self.admission.num_running == 0
        assert self.admission.num_waiting("m") == 0
