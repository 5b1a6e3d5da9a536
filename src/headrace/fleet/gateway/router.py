"""From the registry to a decision: who could serve a request now, as values, and which one does."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.routing import RoutingConfig
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError
from headrace.fleet.gateway.models.needs import Suitable
from headrace.fleet.gateway.prefix.blocks import Prompt
from headrace.fleet.gateway.prefix.knowledge import Knowledge
from headrace.fleet.gateway.routing.values import Candidate, Decision, Query
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica

#: Prompt tokens per second that are reckoned with before any were seen.
DEFAULT_PREFILL_RATE = 2000.0

#: Lanes that are remembered; beyond, those that no request has come to for longest are forgotten.
MAX_LANES = 10_000

Choose = Callable[[RoutingConfig, Query, Sequence[Candidate]], Decision]


class Choice(NamedTuple):
    """A replica, and why it."""

    replica: Replica
    decision: Decision


class Wanted(NamedTuple):
    """What a request looks for."""

    model: str
    lane: str
    """Where it queues: the model, and what narrows it down."""
    prompt_tokens: int
    output_tokens: int
    session: str
    salt: str
    """Keeps its prefix cache apart from others'; empty: shared."""
    suited: Callable[[Sequence[Replica]], Suitable]
    """Those of some replicas that can do what the request needs."""
    prompt: Prompt | None = None
    """Where replicas are chosen by what they have cached of it."""
    home: str = ""
    """The only replica that can answer, which keeps what the request goes on from; empty: any can."""
    owner: str = ""
    """Whom replicas are to keep the answer for."""


class Router:
    """Asks a policy, over the replicas that can be used at this moment."""

    def __init__(
        self,
        registry: Registry,
        config: FleetConfig,
        clock: Clock,
        choose: Choose,
        knowledge: Knowledge,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` gives numbers uniform in [0, 1), for policies."""
        self._registry = registry
        self.config = config
        self._clock = clock
        self._choose = choose
        self._knowledge = knowledge
        self.index = knowledge.index
        self._draw = draw
        self._numbers: Counter[str] = Counter()
        self._change = asyncio.Event()
        self._lanes: dict[str, Wanted] = {}

    def pick(
        self, wanted: Wanted, avoided: Collection[str] = (), *, is_needed: bool = True
    ) -> Choice | None:
        """The replica to try next; None if there is none. Those in `avoided` only if there is no other, and one is needed.

        The request must be sent there: where it is the trial of a half-open circuit, no other one goes.
        """
        serving = self._serving(wanted)
        fresh = [r for r in serving if r.id not in avoided]
        replicas = fresh or (serving if is_needed else [])
        if not replicas:
            return None
        number = self._numbers[wanted.lane]
        self._numbers[wanted.lane] = number + 1
        query = Query(
            session=wanted.session,
            prompt_tokens=wanted.prompt_tokens,
            output_tokens=wanted.output_tokens,
            number=number,
            draw=self._draw(),
        )
        decision = self._choose(
            self.config.routing, query, self._candidates(replicas, wanted.prompt)
        )
        replica = next(r for r in replicas if r.id == decision.replica_id)
        if wanted.prompt is not None:
            self.index.note_sent(wanted.prompt, replica.id)
        replica.breaker.note_sent(self._clock.monotonic())
        return Choice(replica, decision)

    async def informed(self, wanted: Wanted, body: Mapping[str, Any]) -> Wanted:
        """With the prompt's tokens, where some replica that may be chosen tells what it has cached of them."""
        if wanted.prompt is None or not self.index.is_told:
            return wanted
        serving = self._serving(wanted)
        prompt = await self._knowledge.with_tokens(wanted.prompt, body, wanted.salt, serving)
        if prompt is wanted.prompt:
            return wanted
        return wanted._replace(prompt=prompt, prompt_tokens=prompt.num_tokens)

    def note_answered(self, wanted: Wanted, replica: Replica) -> None:
        """The replica has computed the request's prompt."""
        if wanted.prompt is not None:
            self.index.note_answered(wanted.prompt, replica.id)

    def knows(self, model: str) -> bool:
        """Any replica, ready or not, serves it; or one has not said yet what it serves; or there is none at all yet."""
        if model in self._registry.startable:
            return True
        if not len(self._registry):
            return not self._registry.startable
        return any(not replica.models or model in replica.models for replica in self._registry)

    def check(self, wanted: Wanted) -> None:
        """Raises BadRequestError if no replica of the model, ready or not, could ever serve the request."""
        serving = [r for r in self._registry if wanted.model in r.models and r.answers]
        found = wanted.suited(serving)
        if serving and not found.replicas:
            raise BadRequestError(
                f"No replica of '{wanted.model}' offers {found.lacking}.", code="unsupported"
            )
        # The one asked for last is at the end: a crowd of new names must not push out one that requests wait in.
        self._lanes.pop(wanted.lane, None)
        if len(self._lanes) >= MAX_LANES:
            del self._lanes[next(iter(self._lanes))]
        self._lanes[wanted.lane] = wanted._replace(prompt=None)

    def context(self, model: str) -> int | None:
        """Tokens of prompt and answer together that replicas of the model can have at most; None: not known of all."""
        found = [r.max_context for r in self._registry if model in r.models]
        known = [length for length in found if length is not None]
        return max(known) if known and len(known) == len(found) else None

    def free_in_lane(self, lane: str) -> int | None:
        """As `free_places`, for the last request that was checked in this lane."""
        wanted = self._lanes.get(lane)
        return None if wanted is None else self.free_places(wanted)

    def free_places(self, wanted: Wanted) -> int | None:
        """Requests that ready replicas could take now beyond those they have; None: no replica is ready."""
        serving = self._serving(wanted)
        if not serving:
            return None
        places: int = sum(max(0, r.max_requests - r.load.num_requests) for r in serving)
        return places

    def note_change(self) -> None:
        """Replicas came, went or can serve again: whoever waits looks again."""
        self._knowledge.sync()
        self._change.set()
        self._change = asyncio.Event()

    async def wait_change(self) -> None:
        """Until the next change."""
        await self._change.wait()

    def _serving(self, wanted: Wanted) -> list[Replica]:
        """Those that may get it now. Where all that could are ejected, those are tried: to wait for them would tell its client
        later, and less, than they do; how the rest of the model is says nothing of an arm of a split.
        """
        registry, model = self._registry, wanted.model
        return _kept(wanted, registry.serving(model)) or _kept(wanted, registry.ejected(model))

    def _candidates(self, replicas: Sequence[Replica], prompt: Prompt | None) -> list[Candidate]:
        cached = self.index.cached(prompt) if prompt is not None else {}
        now = self._clock.monotonic()
        slow_start = self._registry.health.slow_start
        slowness = self._registry.slowness(replicas)
        return [
            Candidate(
                id=replica.id,
                weight=replica.share(now, slow_start) / slowness.get(replica.id, 1.0),
                num_requests=replica.load.num_requests,
                prefill_tokens=replica.load.prefill_tokens,
                decode_tokens=replica.load.decode_tokens,
                cached_tokens=cached.get(replica.id, 0),
                ttft=replica.latency.ttft,
                tpot=replica.latency.tpot,
                prefill_rate=self._prefill_rate(replica),
                max_requests=replica.max_requests,
            )
            for replica in replicas
        ]

    def _prefill_rate(self, replica: Replica) -> float:
        configured = self.config.routing.prefill_tokens_per_second
        if configured is not None:
            return configured * replica.spec.weight
        return replica.latency.prefill_rate or DEFAULT_PREFILL_RATE


def _kept(wanted: Wanted, replicas: list[Replica]) -> list[Replica]:
    """Those of some that can answer it."""
    kept = wanted.suited(replicas).replicas if replicas else []
    return [replica for replica in kept if replica.id == wanted.home] if wanted.home else list(kept)
