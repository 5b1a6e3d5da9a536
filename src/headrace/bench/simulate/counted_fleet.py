"""Fleet mode: replicas that count tokens behind a queue, and the production rule that chooses among them.

One list of events in order of time. A replica is one event for each stretch of equal steps; the gateway is a queue with
production's bounds, and production's routing policy over a few replicas that are drawn, beside the one that has most of
the prompt cached (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001: a few are nearly as good as
all).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random

from headrace.bench.simulate.counted_queue import CountedQueue
from headrace.bench.simulate.counted_replica import CountedReplica, Job
from headrace.bench.simulate.options import SimulateOptions
from headrace.bench.simulate.profile import Profile
from headrace.bench.simulate.scaling import Autoscaler
from headrace.bench.simulate.tally import Tally
from headrace.bench.trace import TraceRow
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.autoscaler.gather import QueueLook, ReplicaLook
from headrace.fleet.autoscaler.traffic import Ended
from headrace.fleet.gateway.routing.choose import POLICIES
from headrace.fleet.gateway.routing.pipeline import decide
from headrace.fleet.gateway.routing.values import Candidate, Query

#: Replicas that are drawn as candidates where there are more.
_DRAWN = 8
#: Blocks for which it is remembered who had them last.
_MAX_HOLDERS = 1_000_000

Event = Callable[[float], None]


class CountedFleet:
    """The gateway, its replicas and their lives. Use it once."""

    def __init__(
        self, options: SimulateOptions, profile: Profile, block_tokens: int, tally: Tally
    ) -> None:
        config = FleetConfig(routing=RoutingConfig(policy=options.routing))
        self._routing = str(options.routing)
        self._policy = POLICIES[options.routing](config.routing)
        self._slow_start = config.health.slow_start
        self._attempts = config.gateway.retries.attempts
        self._patience = config.gateway.retries.patience
        self._place = options.place
        boot = options.place.boot_time
        self._boot_seconds = profile.boot_seconds if boot is None else boot
        self._profile = profile
        self._block_tokens = block_tokens
        self._tally = tally
        self._rng = Random(f"{options.seed}:fleet")
        self._rng_of_kills = Random(f"{options.seed}:kill")
        self._until = 0.0
        self._events: list[tuple[float, int, Event | CountedReplica]] = []
        """A replica stands for the end of its stretch."""
        self._order = count()
        self._names = count(1)
        self._numbers = count()
        self._holders: dict[int, CountedReplica] = {}
        self._max_requests = 2 * profile.max_num_seqs
        step = profile.step
        budget = profile.max_num_batched_tokens
        self._prefill_rate = budget / step.seconds(budget, 0, 0)
        self.queue = CountedQueue(config.flow, self._rng)
        self._lost: deque[Job] = deque()
        """Requests whose replica has ended; they go first."""
        self.replicas: list[CountedReplica] = []
        """Those that serve and may be sent requests."""
        self.leaving: list[CountedReplica] = []
        self.num_pending = 0
        self._num_unwanted = 0
        """Of those that start, how many are to end as soon as they have."""
        self.num_wanted = 0
        self.now = 0.0
        self.autoscaler: Autoscaler | None = None
        self._gone_seconds = 0.0
        """That replicas computed which are gone."""

    # ---- the run -------------------------------------------------------------------------------

    def at(self, time: float, event: Event) -> None:
        """Do this then."""
        heappush(self._events, (time, next(self._order), event))

    def run(self, rows: Iterator[TraceRow], until: float) -> None:
        """All requests, to the end of the last one; events of the fleet itself up to `until`."""
        self.at(1.0, self._sweep)
        self._until = until
        self._expect_kill()
        if self.autoscaler is not None:
            self.at(0.0, self._look)
        for row in rows:
            self._run_until(row.at)
            self.now = row.at
            self._tally.arrived(row.at, row.input_tokens + row.output_tokens)
            self._arrive(Job(row.at, row.input_tokens, row.output_tokens, row.blocks))
        self._run_until(until)
        while self._is_busy and self._events:
            self._run_next()
        self._tally.close()

    @property
    def _is_busy(self) -> bool:
        return bool(self.queue or self._lost) or any(
            r.num_requests for r in (*self.replicas, *self.leaving)
        )

    def _run_until(self, time: float) -> None:
        while self._events and self._events[0][0] <= time:
            self._run_next()

    def _run_next(self) -> None:
        self.now, _, event = heappop(self._events)
        if isinstance(event, CountedReplica):
            self._step(event, self.now)
        else:
            event(self.now)

    def _sweep(self, now: float) -> None:
        """Those that have waited too long go."""
        for _, error in self.queue.late(now, is_ready=bool(self.replicas)):
            self._tally.failed(error)
        while self._lost and now - self._lost[0].entered > self._patience:
            self._give_up(self._lost.popleft(), "UnavailableError")
        self.at(now + 1.0, self._sweep)

    # ---- requests ------------------------------------------------------------------------------

    def _arrive(self, job: Job) -> None:
        job.entered = job.at
        if self.autoscaler is not None:
            traffic = self.autoscaler.sums.traffic
            traffic.arrived(self.now, job.prompt_tokens, job.output_tokens)
        is_waiting = bool(self.queue) or not self._has_place()
        error = self.queue.push(job, self.now, is_waiting=is_waiting)
        if error:
            self._tally.failed(error)
        else:
            self._drain(None)

    def _has_place(self) -> bool:
        most = self._max_requests
        for replica in self.replicas:  # noqa: SIM110 - a generator costs more than the question
            if replica.num_requests < most:
                return True
        return False

    def _drain(self, freed: CountedReplica | None) -> None:
        """Give turns while there is room. What a replica lost has had its turn, and goes wherever one is."""
        while self._lost and self.replicas:
            job = self._lost.popleft()
            self._send(job, self._choose(job, freed) or self._rng.choice(self.replicas))
        while self.queue and (freed is None or freed.num_requests < self._max_requests):
            if freed is None and not self._has_place():
                return
            job_now = self.queue.pop(self.now)
            if job_now is None:
                return
            replica = self._choose(job_now, freed)
            if replica is not None:
                self._send(job_now, replica)

    def _give_up(self, job: Job, error: str) -> None:
        self.queue.failed(job)
        self._tally.failed(error)

    def _send(self, job: Job, replica: CountedReplica) -> None:
        for block in job.blocks:
            self._holders[block] = replica
        if len(self._holders) > _MAX_HOLDERS:
            for block in list(self._holders)[: _MAX_HOLDERS // 2]:
                del self._holders[block]
        if replica.add(job, self.now):
            self._watch(replica)

    def _watch(self, replica: CountedReplica) -> None:
        end = replica.next_event
        if end is not None:
            heappush(self._events, (end, next(self._order), replica))

    def _step(self, replica: CountedReplica, now: float) -> None:
        if replica.next_event != now:
            return  # cut short, or it has ended
        ended = replica.advance()
        self._watch(replica)
        overhead = self._profile.request_seconds
        for job in ended:
            self.queue.ended(job)
            self._tally.cached_tokens += job.cached
            self._tally.answered(
                job.at, job.first + overhead, now + overhead, job.prompt_tokens, job.output_tokens
            )
            if self.autoscaler is not None:
                self._tell(self.autoscaler, job, replica, now)
        if ended and replica.is_draining:
            self._forget_if_idle(replica)
        elif ended and (self.queue or self._lost):
            self._drain(replica)

    def _tell(self, autoscaler: Autoscaler, job: Job, replica: CountedReplica, now: float) -> None:
        request = Ended(
            arrival=job.at,
            prompt_tokens=job.prompt_tokens - job.cached,
            output_tokens=job.output_tokens,
            asked_prompt=job.prompt_tokens,
            asked_output=job.output_tokens,
            ttft=job.first - job.at,
            latency=now - job.at,
            is_sample=job.at >= replica.since + autoscaler.warmup,
        )
        autoscaler.ended(now, request)

    def _look(self, now: float) -> None:
        """The autoscaler's turn."""
        autoscaler = self.autoscaler
        if autoscaler is None or now >= self._until:
            return
        self.at(now + autoscaler.period, self._look)
        active = (*self.replicas, *self.leaving)
        busy = self._gone_seconds + sum(r.busy_until(now) for r in active)
        use = autoscaler.utilisation(now, busy, self._tally.ready_seconds(now))
        slots = self._profile.max_num_seqs
        looks = [
            ReplicaLook(r.num_running, r.num_waiting, slots, r.kv_usage, None, use)
            for r in self.replicas
        ]
        oldest = self.queue.oldest()
        queue = QueueLook(len(self.queue), None if oldest is None else now - oldest)
        desired = autoscaler.look(now, looks, queue, self.num_pending - self._num_unwanted)
        if desired != self.num_wanted:
            self.scale_to(desired)

    def _choose(self, job: Job, freed: CountedReplica | None) -> CountedReplica | None:
        """Production's choice among some that have room; None: none has."""
        most = self._max_requests
        replicas = [r for r in self._drawn(job, freed) if r.num_requests < most]
        if not replicas:
            replicas = [r for r in self.replicas if r.num_requests < most][:_DRAWN]
        if not replicas:
            return None
        if len(replicas) == 1:
            return replicas[0]
        query = Query(
            prompt_tokens=job.prompt_tokens,
            output_tokens=job.output_tokens,
            number=next(self._numbers),
            draw=self._rng.random(),
        )
        candidates = [self._candidate(r, job) for r in replicas]
        chosen = decide(self._routing, self._policy, query, candidates).replica_id
        return next(r for r in replicas if r.id == chosen)

    def _drawn(self, job: Job, freed: CountedReplica | None) -> Collection[CountedReplica]:
        """A few, each once, and those that speak for themselves; all, where there are few."""
        replicas, draw = self.replicas, self._rng.random
        count = len(replicas)
        if count <= _DRAWN:
            return replicas
        drawn = [replicas[int(draw() * count)] for _ in range(_DRAWN)]
        if freed is not None:
            drawn.append(freed)
        if job.blocks and (warm := self._warm(job)) is not None:
            drawn.append(warm)
        return dict.fromkeys(drawn)

    def _candidate(self, replica: CountedReplica, job: Job) -> Candidate:
        age, slow_start = self.now - replica.since, self._slow_start
        return Candidate(
            id=replica.id,
            weight=1.0 if age >= slow_start else 0.1 + 0.9 * age / slow_start,
            num_requests=replica.num_requests,
            prefill_tokens=replica.prefill_tokens,
            decode_tokens=replica.decode_tokens,
            cached_tokens=replica.sent(job.blocks, job.prompt_tokens) if job.blocks else 0,
            prefill_rate=self._prefill_rate,
            max_requests=self._max_requests,
        )

    def _warm(self, job: Job) -> CountedReplica | None:
        """The one that was sent the longest part of this prompt last."""
        for block in reversed(job.blocks):
            holder = self._holders.get(block)
            if holder is not None and not holder.is_draining and not holder.is_dead:
                return holder
        return None

    # ---- lives ---------------------------------------------------------------------------------

    def start_ready(self, num: int) -> None:
        """Replicas that have been there before the simulation began."""
        for _ in range(num):
            self._ready()
        self.num_wanted = num

    def scale_to(self, num: int) -> None:
        """So many are wanted: starts take their time, and those that are to go finish what they have."""
        self.num_wanted = num
        coming = self.num_pending - self._num_unwanted
        missing = num - len(self.replicas) - coming
        if missing > 0:
            spared = min(missing, self._num_unwanted)
            self._num_unwanted -= spared
            for _ in range(missing - spared):
                self._start()
        elif missing < 0:
            unwanted = min(-missing, coming)
            self._num_unwanted += unwanted
            self._stop(-missing - unwanted)
        self._count()

    def _expect_kill(self) -> None:
        if self._place.kill_every > 0:
            at = self.now + self._rng_of_kills.expovariate(1.0 / self._place.kill_every)
            if at < self._until:
                self.at(at, self._kill_one)

    def _kill_one(self, now: float) -> None:
        """A replica that serves ends at once; what it had goes to others, and another one is started."""
        self._expect_kill()
        if not self.replicas:
            return
        victim = self.replicas.pop(self._rng.randrange(len(self.replicas)))
        self._tally.num_kills += 1
        self._gone_seconds += victim.busy_seconds
        lost = victim.lose_all()
        for job in lost:
            job.num_tries += 1
            if job.num_tries >= self._attempts:
                self._give_up(job, "BadGatewayError")
                continue
            job.entered = self.now
            self._lost.append(job)
        self.scale_to(self.num_wanted)
        self._drain(None)

    def _start(self) -> None:
        self.num_pending += 1
        self._tally.num_boots += 1
        self.at(self.now + self._boot_seconds, self._booted)

    def _booted(self, now: float) -> None:
        self.num_pending -= 1
        if self._num_unwanted:
            self._num_unwanted -= 1
        elif self._rng.random() < self._place.boot_failures:
            self._tally.num_boot_failures += 1
            self.scale_to(self.num_wanted)
        else:
            self._ready()
            if self.autoscaler is not None:
                self.autoscaler.booted(self._boot_seconds)
            self._drain(None)
        self._count()

    def _ready(self) -> None:
        replica = CountedReplica(next(self._names), self._profile, self._block_tokens, self.now)
        self.replicas.append(replica)
        self._count()

    def _stop(self, num: int) -> None:
        """Those with the least to do go first."""
        for replica in sorted(self.replicas, key=lambda r: r.num_requests)[:num]:
            self.replicas.remove(replica)
            replica.is_draining = True
            self.leaving.append(replica)
            self._forget_if_idle(replica)

    def _forget_if_idle(self, replica: CountedReplica) -> None:
        if not replica.num_requests:
            self._gone_seconds += replica.busy_seconds
            self.leaving.remove(replica)
            self._count()

    def _count(self) -> None:
        ready = len(self.replicas)
        self._tally.replicas(self.now, ready + len(self.leaving) + self.num_pending, ready)
