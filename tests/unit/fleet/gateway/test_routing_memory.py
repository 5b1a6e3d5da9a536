"""Distinct prompts through every index and every policy: memory stays where it was."""

from itertools import cycle
from random import Random

import psutil
import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.models import Arm, ModelRule, ModelsConfig
from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.fleet.gateway.models.canary import Canaries, Outcome
from headrace.fleet.gateway.models.resolve import resolve
from headrace.fleet.gateway.models.values import Asked
from headrace.fleet.gateway.prefix.index import PrefixIndex
from headrace.fleet.gateway.prefix.kv_wire import Stored
from headrace.fleet.gateway.prefix.token_chain import ids
from headrace.fleet.gateway.routing.choose import choose
from headrace.fleet.gateway.routing.values import Candidate, Query

ARMS = (Arm(version="a"), Arm(version="b", canary=True))
MODELS = ModelsConfig(rules=(ModelRule(name="m", split=ARMS),))


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_memory_is_flat_over_distinct_prompts(count: int) -> None:
    clock, draw = FakeClock(), Random(0).random
    config = RoutingConfig(block_chars=16, max_index_blocks=512, max_told_blocks=512)
    index, canaries = PrefixIndex(config, clock), Canaries(MODELS)
    index.watch("r0")
    policies = cycle(RoutingConfig(policy=policy) for policy in RoutingPolicy)
    process = psutil.Process()
    for number in range(count):
        prompt = index.read({"prompt": f"{number:080}"}, model="m", salt="", num_tokens=20)
        prompt = index.with_tokens(prompt, ids(range(number, number + 70)), "")
        cached = index.cached(prompt)
        query = Query(session=f"{number}", prompt_tokens=20, number=number, draw=draw())
        candidates = [Candidate(id=f"r{n}", cached_tokens=cached.get(f"r{n}", 0)) for n in range(3)]
        chosen = choose(next(policies), query, candidates).replica_id
        index.note_sent(prompt, chosen)
        index.note_answered(prompt, chosen)
        index.told.apply("r0", _stored(number))
        route = resolve(MODELS, canaries.off(clock.monotonic()), Asked(model="m", key=f"{number}"))
        canaries.note(route.trials[0], Outcome(is_error=False, seconds=0.1), clock.monotonic())
        clock.advance(0.01)
        if number == count // 5:
            before = process.memory_info().rss
    assert index.num_blocks <= 3 * 512 + 512 + 512
    assert process.memory_info().rss - before < 4 * 1024 * 1024


def _stored(number: int) -> Stored:
    return Stored(
        hashes=(number,), parent=None, token_ids=(number,) * 16, block_size=16, place=("GPU", 0)
    )
