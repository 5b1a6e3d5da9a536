"""Limits, money and keys in Redis: several gateways count as one.

A request takes all its limits in one script, one round trip. What it came to is settled behind it, by a task that tries
again until Redis has it. A gateway renews what it holds; what is not renewed for `lease` seconds is given up and
settled by any other gateway.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from headrace.config.fleet.accounts import RedisConfig
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, UnavailableError
from headrace.fleet.gateway.accounts import redis_scripts as scripts
from headrace.fleet.gateway.accounts.account import StoredKey
from headrace.fleet.gateway.accounts.meters import NOTHING, Actual, Hold, Refusal
from headrace.fleet.gateway.accounts.redis_round import Round
from headrace.observe.catalogue import ACCOUNT_LOST, ACCOUNT_STORE_FAILURES
from headrace.observe.metrics import Metrics

try:
    from redis import asyncio as client
    from redis.exceptions import RedisError
except ImportError:
    raise ConfigError("accounts.redis needs a package: pip install 'headrace[redis]'.") from None

#: Settlements in one round trip, and holds that are renewed in one.
GROUP: Final = 200
#: Settlements that wait for Redis at most.
MAX_PENDING: Final = 100_000
#: Connections of one gateway; a script takes a fraction of a millisecond.
MAX_CONNECTIONS: Final = 16
#: Seconds before settlements are tried again.
RETRY_PERIOD: Final = 0.5
#: Times that Redis may answer one settlement with an error (it is read-only for a while, or full); then its lease ends.
MAX_REJECTIONS: Final = 240
#: Seconds that closing waits for settlements.
CLOSE_SECONDS: Final = 5.0
#: Seconds that money of past periods is kept.
KEPT: Final = 40 * 86_400

_FAILURES = (RedisError, OSError, TimeoutError)
T = TypeVar("T")

log = logging.getLogger("headrace.fleet")


class _Settlement(NamedTuple):
    """What a hold came to, on its way to Redis."""

    hold_id: str
    actual: Actual
    num_rejections: int = 0


class RedisStore:
    """Implements Store."""

    def __init__(
        self, config: RedisConfig, clock: Clock, metrics: Metrics, *, charge_lost: bool
    ) -> None:
        """Raises ConfigError for an address that cannot be one. Connects when it is used."""
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._charge_lost = charge_lost
        self._tag = f"{{{config.prefix}}}:"
        try:
            pool = client.BlockingConnectionPool.from_url(
                str(config.url),
                max_connections=MAX_CONNECTIONS,
                timeout=config.timeout,
                socket_timeout=config.timeout,
                socket_connect_timeout=config.timeout,
            )
        except ValueError:  # its words may quote the address, and so the password
            raise ConfigError(
                "accounts.redis.url must be a redis:// or rediss:// address, with its password percent-encoded."
            ) from None
        self._redis = client.Redis.from_pool(pool)
        self._take = self._redis.register_script(scripts.TAKE)
        self._settle = self._redis.register_script(scripts.SETTLE)
        self._sweep = self._redis.register_script(scripts.SWEEP)
        self._renew = self._redis.register_script(scripts.RENEW)
        self._holds: dict[str, Hold] = {}
        self._pending: deque[_Settlement] = deque()
        #: Redis is there and would not take them: those behind them go first.
        self._rejected: deque[_Settlement] = deque()
        self._round = Round()
        self._has_pending = asyncio.Event()
        # Two at once would each drop what the other has not sent.
        self._settling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._abandoned: set[asyncio.Task[Refusal | None]] = set()
        self._version: bytes | str | None = None
        self._keys: tuple[StoredKey, ...] = ()

    @property
    def num_holds(self) -> int:
        """Part of Store."""
        return len(self._holds)

    @property
    def backlog(self) -> int:
        """Part of Store."""
        return len(self._pending) + len(self._rejected)

    async def start(self) -> None:
        """Part of Store. Redis may come later."""
        self._tasks = [
            asyncio.create_task(self._settle_all(), name="settle"),
            asyncio.create_task(self._renew_all(), name="renew"),
        ]

    async def tidy(self) -> None:
        """Part of Store: settle what gateways that died have left."""
        lost = await self._call(
            self._sweep(
                keys=[self._tag + "holds", self._tag + "leases"],
                args=[self._tag + "lost:", int(self._charge_lost), GROUP],
            )
        )
        if lost:
            self._metrics.add(ACCOUNT_LOST, (), lost)
            log.warning("%d requests of gateways that ended were settled.", lost)

    async def take(self, hold: Hold) -> Refusal | None:
        """Part of Store."""
        asking = asyncio.ensure_future(self._take_now(hold))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # It may be taken all the same: it is given back when that is known.
            self._abandoned.add(asking)
            asking.add_done_callback(self._abandoned.discard)
            asking.add_done_callback(lambda done: self._give_back(hold, done))
            raise

    def settle(self, hold: Hold, actual: Actual) -> None:
        """Part of Store."""
        if self._holds.pop(hold.id, None) is not None:
            self._later(hold.id, actual)

    async def keys(self) -> tuple[StoredKey, ...]:
        """Part of Store. Read again when they have changed."""
        version = await self._call(self._redis.get(self._tag + "version"))
        if version != self._version:
            records = await self._call(
                cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(self._tag + "keys"))
            )
            self._keys = tuple(_decoded(records.values()))
            self._version = version
        return self._keys

    async def put_key(self, key: StoredKey, *, is_new: bool) -> bool:
        """Part of Store."""
        name, record = self._tag + "keys", msgspec.json.encode(key)
        # As one: a key that is written while its version is not would be unknown to other gateways.
        async with self._redis.pipeline(transaction=True) as pipe:
            put = pipe.hsetnx if is_new else pipe.hset
            put(name, key.name, record)
            pipe.incr(self._tag + "version")
            is_put, _ = await self._call(pipe.execute())
        return bool(is_put) or not is_new

    async def money(self, meter_ids: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        """Part of Store."""
        found = {}
        for name in meter_ids:
            fields = self._redis.hmget(self._meter(name), ["spent", "aside"])
            spent, aside = await self._call(cast("Awaitable[list[bytes | None]]", fields))
            found[name] = (int(spent or 0), int(aside or 0))
        return found

    async def close(self) -> None:
        """Part of Store."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._pending:
                    await self._settle_group()
        except _FAILURES as error:
            self._note_failure(error)
        self._round.tell()
        if self.backlog:
            log.error("%d settlements could not be written; their leases end.", self.backlog)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()

    async def _take_now(self, hold: Hold) -> Refusal | None:
        meters = [(self._meter(m.id), int(m.kind), m.limit, m.amount) for m in hold.meters]
        ends = [0 if m.resets_at is None else int(m.resets_at) + KEPT for m in hold.meters]
        keys = [self._tag + "holds", self._tag + "leases", f"{self._tag}void:{hold.id}"]
        record = msgspec.json.encode(meters)
        try:
            number, wait = await self._call(
                self._take(keys=keys, args=[hold.id, record, self._config.lease, *ends])
            )
        except UnavailableError:
            self._later(hold.id, NOTHING)
            if self._config.fail_open:
                return None
            raise
        if number <= 0:
            self._holds[hold.id] = hold
            return None
        meter, seconds = hold.meters[number - 1], float(wait)
        if seconds >= 0:
            return Refusal(meter, seconds)
        end = meter.resets_at
        return Refusal(meter, None if end is None else end - self._clock.wall())

    def _give_back(self, hold: Hold, done: "asyncio.Task[Refusal | None]") -> None:
        if not done.cancelled() and done.exception() is None:
            self.settle(hold, NOTHING)

    def _later(self, hold_id: str, actual: Actual) -> None:
        if self.backlog >= MAX_PENDING:
            self._round.give_up()  # Redis is away for long: what was set aside counts as lost
            return
        self._pending.append(_Settlement(hold_id, actual))
        self._has_pending.set()

    async def _settle_all(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            while self.backlog:
                if not self._pending:
                    await asyncio.sleep(RETRY_PERIOD)
                    self._pending.extend(self._rejected)
                    self._rejected.clear()
                try:
                    await self._settle_group()
                except _FAILURES as error:
                    self._note_failure(error)
                    self._round.tell()
                    await asyncio.sleep(RETRY_PERIOD)

    async def _settle_group(self) -> None:
        """The oldest settlements; they stay until Redis has them, and may be sent twice."""
        async with self._settling:
            group = [self._pending[place] for place in range(min(GROUP, len(self._pending)))]
            async with self._redis.pipeline(transaction=False) as pipe:
                for hold_id, actual, _ in group:
                    names = ("holds", "leases", f"lost:{hold_id}", f"void:{hold_id}")
                    await self._settle(
                        keys=[self._tag + name for name in names],
                        args=[hold_id, actual.requests, actual.tokens, actual.cost],
                        client=pipe,
                    )
                answers = await pipe.execute(raise_on_error=False)
            for settlement, answer in zip(group, answers, strict=True):
                self._pending.popleft()
                self._note_settled(settlement, answer)
            if not self._pending:
                self._round.tell()

    def _note_settled(self, settlement: _Settlement, answer: object) -> None:
        if not answer:
            return
        self._metrics.add(ACCOUNT_STORE_FAILURES, ())
        if not isinstance(answer, Exception):
            self._round.reject(f"{answer} limits of a request are of another kind there")
            return
        self._round.reject(str(answer) or type(answer).__name__)
        if settlement.num_rejections < MAX_REJECTIONS:
            self._rejected.append(settlement._replace(num_rejections=settlement.num_rejections + 1))
        else:
            self._round.give_up()

    async def _renew_all(self) -> None:
        while True:
            await asyncio.sleep(self._config.lease / 3)
            ids = list(self._holds)
            for start in range(0, len(ids), GROUP):
                try:
                    await self._call(
                        self._renew(
                            keys=[self._tag + "leases"],
                            args=[self._config.lease, *ids[start : start + GROUP]],
                        )
                    )
                except UnavailableError:
                    break

    async def _call(self, asked: Awaitable[T]) -> T:
        """Its answer in time. Raises UnavailableError."""
        try:
            async with asyncio.timeout(self._config.timeout):
                return await asked
        except _FAILURES as error:
            self._note_failure(error)
            raise UnavailableError(
                "Limits cannot be counted at the moment.", retry_after=1.0
            ) from None

    def _note_failure(self, error: Exception | str) -> None:
        self._metrics.add(ACCOUNT_STORE_FAILURES, ())
        log.error("Redis does not do what it is asked: %s", error or type(error).__name__)

    def _meter(self, name: str) -> str:
        return f"{self._tag}m:{name}"


def _decoded(records: Iterable[bytes]) -> list[StoredKey]:
    """A record of a newer gateway must not keep this one from knowing the others."""
    found = []
    for record in records:
        try:
            found.append(msgspec.json.decode(record, type=StoredKey))
        except msgspec.DecodeError:
            log.error("A key in Redis cannot be read.")
    return found
