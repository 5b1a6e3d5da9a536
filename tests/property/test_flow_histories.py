"""Random histories of arrivals, ends, faults, cancellations, cold starts and time: nothing leaks, nobody starves."""

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.flow import FlowConfig, PriorityClass, QueueBounds, QueueOrder
from headrace.core.errors import HeadraceError
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.fair_share import FairShare
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket, Waiter

CLASSES = (
    PriorityClass(name="high", rank=2, ttft=3.0, order=QueueOrder.EDF, max_wait=8.0),
    PriorityClass(name="mid", rank=1, max_wait=6.0),
    PriorityClass(name="low", sheddable=True, max_wait=4.0, bounds=QueueBounds(requests=6)),
)
CONFIG = FlowConfig(
    classes=CLASSES,
    tenant_bounds=QueueBounds(requests=4, tokens=300),
    total_bounds=QueueBounds(requests=8, tokens=800),
    cold_wait=5.0,
)
#: Without `mid`, whose requests become `high`, or `low`.
_FEW = (CLASSES[0], CLASSES[2])
CONFIGS = (
    CONFIG,
    FlowConfig(classes=_FEW, cold_wait=3.0),
    FlowConfig(classes=_FEW, default_class="low"),
)
ACTIONS = st.one_of(
    st.tuples(
        st.just("arrive"),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["high", "mid", "low"]),
        st.integers(0, 120),
        st.sampled_from(["m", "n"]),
    ),
    st.tuples(st.just("end"), st.integers(0, 50), st.integers(0, 200)),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("cancel_now"), st.integers(0, 50)),
    st.tuples(st.just("pass"), st.floats(0.0, 5.0)),
    st.tuples(st.just("places"), st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.just("configure"), st.integers(0, 2)),
    st.tuples(st.just("breathe")),
)


class World:
    """One admission, its places and everybody who has come."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.places: int | None = 1
        self.running: dict[str, list[tuple[Slot, asyncio.Event]]] = {"m": [], "n": []}
        self.tasks: list[asyncio.Task[None]] = []
        self.admission = Admission(CONFIG, self.clock, self.free, draw=lambda: 0.5)

    def free(self, lane: str) -> int | None:
        return None if self.places is None else max(0, self.places - len(self.running[lane]))

    async def request(self, ticket: Ticket) -> None:
        with contextlib.suppress(HeadraceError):
            async with self.admission.enter(ticket) as slot:
                entry = (slot, asyncio.Event())
                self.running[ticket.lane].append(entry)
                slot.placed()
                try:
                    await entry[1].wait()
                finally:
                    self.running[ticket.lane].remove(entry)

    async def act(self, action: tuple) -> None:
        match action:
            case ("arrive", tenant, priority, tokens, lane):
                ticket = Ticket(
                    lane=lane, tenant=tenant, priority=priority, prompt_tokens=tokens, num_bytes=9
                )
                self.tasks.append(asyncio.create_task(self.request(ticket)))
                await breathe()
            case ("end", index, used):
                entries = self.running["m"] + self.running["n"]
                if entries:
                    slot, event = entries[index % len(entries)]
                    slot.used(prompt_tokens=used, output_tokens=used)
                    event.set()
            case ("cancel" | "cancel_now", index):
                if self.tasks:
                    self.tasks[index % len(self.tasks)].cancel()
                if action[0] == "cancel":
                    await breathe()
            case ("pass", seconds):
                self.clock.advance(seconds)
                self.admission.tick()
            case ("configure", index):
                self.admission.configure(CONFIGS[index])
            case ("places", places):
                self.places = places
                self.admission.wake()
            case _:
                await breathe()

    def check(self) -> None:
        """Nobody waits while there is a place (places that were given and not yet taken are used up)."""
        for name in ("m", "n"):
            lane = self.admission._lanes.get(name)
            if lane is None:
                continue
            free = self.free(name)
            assert lane.num_unplaced >= 0
            assert not (lane.num_waiting and free is not None and free > lane.num_unplaced)
            assert lane.num_waiting == sum(1 for _ in lane)

    async def finish(self) -> None:
        self.places = 3
        while not all(task.done() for task in self.tasks):
            for slot_event in self.running["m"] + self.running["n"]:
                slot_event[1].set()
            await breathe()
            self.clock.advance(0.1)
            self.admission.tick()
        self.admission.close()


async def breathe() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=60))
def test_counters_return_to_zero_and_no_place_stays_empty(actions: list[tuple]) -> None:
    async def run() -> None:
        world = World()
        for action in actions:
            await world.act(action)
            await breathe()
            world.check()
        await world.finish()
        assert world.admission.waiting.is_empty
        assert world.admission.num_running == 0
        assert all(lane.num_unplaced == 0 for lane in world.admission._lanes.values())
        assert not world.admission._futures

    asyncio.run(run())


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 400)), min_size=1, max_size=80),
    st.sampled_from("abcd"),
    st.integers(1, 400),
)
def test_no_tenant_starves(others: list[tuple[str, int]], tenant: str, tokens: int) -> None:
    """However others keep the queue full, a request starts before any other tenant gets more than its lead allows."""
    config = FlowConfig(burst=0.0)
    lane = Lane(config)
    for number, (name, cost) in enumerate(others):
        lane.push(make(number, name, cost))
    for _ in range(len(others) // 2):
        lane.pop()
    mine = make(1000, tenant, tokens)
    ahead = sum(1 for waiter in lane if waiter.ticket.tenant == tenant)
    lane.push(mine)
    number, served = 2000, 0
    while (popped := lane.pop()) is not mine:
        assert popped is not None
        served += 1
        # Each other tenant may be served between two turns of this one as long as its counter is lower: at most
        # 400 tokens a turn of ours and 400 of its own, in requests of one token.
        assert served <= 4 * 801 * (ahead + 2)
        name = next(each for each in "abcd" if each != tenant)
        lane.push(make(number := number + 1, name, 1))


@settings(max_examples=100)
@given(st.lists(st.integers(1, 400), min_size=40, max_size=120), st.integers(1, 3))
def test_tenants_that_wait_all_the_time_get_equal_service(costs: list[int], lead: int) -> None:
    """The paper's bound: two tenants that both wait differ by less than two of the largest requests."""
    lane = Lane(FlowConfig(burst=0.0))
    for number, cost in enumerate(costs):
        lane.push(make(number, "ab"[number % 2], cost * lead if number % 2 else cost))
    served = {"a": 0, "b": 0}
    largest = max(costs) * lead
    while all(any(w.ticket.tenant == name for w in lane) for name in "ab"):
        popped = lane.pop()
        assert popped is not None
        served[popped.ticket.tenant] += popped.ticket.prompt_tokens
        assert abs(served["a"] - served["b"]) <= 2 * largest


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("join"), st.sampled_from("abcdef")),
            st.tuples(st.just("leave"), st.sampled_from("abcdef")),
            st.tuples(st.just("charge"), st.sampled_from("abcdef"), st.integers(-50, 100)),
        ),
        max_size=80,
    )
)
def test_the_first_is_always_the_one_with_the_lowest_counter(history: list[tuple]) -> None:
    shares, waiting = FairShare(burst=30.0), set()
    for action in history:
        match action:
            case ("join", name):
                shares.join(name)
                waiting.add(name)
            case ("leave", name):
                shares.leave(name)
                waiting.discard(name)
            case ("charge", name, tokens):
                shares.charge(name, tokens)
        first = shares.first()
        assert (first is None) == (not waiting)
        if first is not None:
            assert shares.counter(first) == min(shares.counter(name) for name in waiting)


def make(number: int, tenant: str, tokens: int) -> Waiter:
    ticket = Ticket(lane="m", tenant=tenant, priority="standard", prompt_tokens=tokens)
    return Waiter(ticket, number=number, arrived=0.0, due=0.0)
