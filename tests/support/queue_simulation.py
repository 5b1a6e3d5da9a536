"""A fleet in discrete time behind the real queues: who gets a first token when.

Replicas take `places` requests at once. A request holds its place for the time of its prefill and of its decoding,
both from its tokens; its first token comes after the prefill. No asyncio: `Lane` is driven by itself, as the gateway's
admission drives it.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.config.fleet.flow import FlowConfig
from headrace.fleet.gateway.flow.lane import Lane
from headrace.fleet.gateway.flow.values import Ticket, Waiter


@dataclass(frozen=True)
class Arrival:
    """One request of a trace."""

    at: float
    tenant: str
    prompt_tokens: int
    output_tokens: int
    priority: str = "standard"


@dataclass
class Outcome:
    """Times to first token by tenant, and requests that found no room."""

    ttft: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    finished: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def p95(self, tenants: Sequence[str]) -> float:
        """Over all requests of these tenants."""
        return percentile([value for name in tenants for value in self.ttft[name]], 0.95)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def poisson(
    tenant: str, *, rate: float, seconds: float, seed: int, priority: str = "standard"
) -> list[Arrival]:
    """Arrivals of one tenant; prompts of 50 to 400 tokens, answers of 20 to 120."""
    chance = random.Random(f"{tenant} {seed}")
    at, found = 0.0, []
    while (at := at + chance.expovariate(rate)) < seconds:
        found.append(
            Arrival(at, tenant, chance.randint(50, 400), chance.randint(20, 120), priority)
        )
    return found


def simulate(
    config: FlowConfig,
    trace: Sequence[Arrival],
    *,
    places: int,
    prefill_rate: float = 4000.0,
    decode_rate: float = 50.0,
    estimated_output: int = 70,
) -> Outcome:
    """Run a trace to its end. What is expected of an answer is the same for all: the queue does not know them."""
    lane, outcome = Lane(config), Outcome()
    arrivals = sorted(trace, key=lambda arrival: arrival.at)
    events: list[tuple[float, int, Arrival | None, Waiter | None]] = [
        (arrival.at, number, arrival, None) for number, arrival in enumerate(arrivals)
    ]
    heapq.heapify(events)
    number, running, real = len(events), 0, {}
    while events:
        now, _, arrival, ended = heapq.heappop(events)
        if ended is not None:
            running -= 1
            ticket, made = ended.ticket, real.pop(ended)
            outcome.finished[ticket.tenant] += 1
            spent = lane.weighted(made.prompt_tokens, made.output_tokens)
            lane.charge(ticket, spent - lane.cost(ticket))
        if arrival is not None:
            ticket = Ticket(
                lane="m",
                tenant=arrival.tenant,
                priority=arrival.priority,
                prompt_tokens=arrival.prompt_tokens,
                output_tokens=estimated_output,
            )
            if lane.classes[ticket.priority].refusal(ticket) is not None:
                outcome.refused[ticket.tenant] += 1
            else:
                number += 1
                waiter = Waiter(ticket, number=number, arrived=now, due=now)
                real[waiter] = arrival
                lane.push(waiter)
        while running < places and (waiter := lane.pop()) is not None:
            running, number = running + 1, number + 1
            made = real[waiter]
            first = now + made.prompt_tokens / prefill_rate
            outcome.ttft[made.tenant].append(first - waiter.arrived)
            end = first + made.output_tokens / decode_rate
            heapq.heappush(events, (end, number, None, waiter))
    assert lane.is_idle or lane.num_waiting == 0
    return outcome
