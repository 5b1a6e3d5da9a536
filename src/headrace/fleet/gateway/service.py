"""What every request to a gateway passes through, in order."""

import asyncio
import hashlib
from collections.abc import Callable

import msgspec

from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.routing import RoutingPolicy
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ModelNotFoundError, UnavailableError
from headrace.core.stats import ReplicaRole
from headrace.fleet.gateway.answer import Answer
from headrace.fleet.gateway.call import Call, read_call
from headrace.fleet.gateway.dispatch import Dispatcher
from headrace.fleet.gateway.endpoints import ENDPOINTS, Kind
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.values import Ticket
from headrace.fleet.gateway.router import Router, Wanted
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.observe.metrics import Metrics
from headrace.web.asgi import Receive, Scope, Send
from headrace.web.bodies import BodyBudget, read_body
from headrace.web.streaming import watch_disconnect

#: Tenant of requests without a key, where none is needed.
ANONYMOUS = "anonymous"
#: Policies that ask what replicas have cached.
BY_PREFIX = frozenset({RoutingPolicy.STICKY, RoutingPolicy.PREFIX_AWARE})


class Service:
    """The gateway's way of a request: read, resolve, dispatch."""

    def __init__(
        self,
        config: FleetConfig,
        registry: Registry,
        dispatcher: Dispatcher,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.config = config
        self.registry = registry
        self._dispatcher = dispatcher
        self._clock = clock
        self.admission = Admission(
            config.flow, clock, dispatcher.router.free_places, metrics=metrics
        )
        self._bodies = BodyBudget(config.gateway.max_buffered_bytes)
        self.is_draining = False
        self._num_open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def apply(self, config: FleetConfig) -> None:
        """From now on."""
        self.config = config
        self._dispatcher.config = config.gateway

    @property
    def router(self) -> Router:
        """Who chooses replicas."""
        return self._dispatcher.router

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: one request to one of `ENDPOINTS`. A client that leaves ends it everywhere at once."""
        if self.is_draining:
            raise UnavailableError("The gateway is shutting down.")
        self._num_open += 1
        self._idle.clear()
        try:
            with self._bodies.reserve(scope) as reservation:
                raw = await read_body(receive, reservation)
                if raw is None:
                    scope["headrace.status"] = 499
                    return
                await self._answer(scope, receive, send, raw)
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._idle.set()

    async def drain(self) -> None:
        """Take nothing new, and wait until all that runs has ended."""
        self.is_draining = True
        await self._idle.wait()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, raw: bytes) -> None:
        call = self._read(scope, raw)
        work = asyncio.ensure_future(self._admitted(call, Answer(send)))
        is_gone = False

        def leave() -> None:
            nonlocal is_gone
            is_gone = True
            work.cancel()

        watcher = asyncio.ensure_future(watch_disconnect(receive, leave))
        try:
            await work
        except asyncio.CancelledError:
            if not is_gone:
                work.cancel()
                raise
            scope["headrace.status"] = 499
        finally:
            watcher.cancel()

    async def _admitted(self, call: Call, answer: Answer) -> None:
        """Wait for a turn, then have it answered."""
        wanted = self._wanted(call)
        if call.endpoint.kind is Kind.TEXT:  # costs a replica next to nothing
            await self._dispatcher.run(call, wanted, answer, lambda: None)
            return
        ticket = Ticket(
            lane=wanted.model,
            tenant=ANONYMOUS,
            priority=self.config.flow.usual_class,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            num_bytes=len(call.raw),
        )
        async with self.admission.enter(ticket) as slot:
            progress = await self._dispatcher.run(call, wanted, answer, slot.placed)
            if (usage := progress.usage) is not None:
                prompt = max(0, usage.prompt_tokens - usage.cached_tokens)
                slot.used(prompt_tokens=prompt, output_tokens=usage.output_tokens)

    def _read(self, scope: Scope, raw: bytes) -> Call:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        gateway = self.config.gateway
        return read_call(
            ENDPOINTS[scope["path"]],
            raw,
            headers,
            request_id=scope["headrace.request_id"],
            arrival=scope["headrace.arrival"],
            chars_per_token=gateway.chars_per_token,
            default_max_tokens=gateway.default_max_tokens,
        )

    def _wanted(self, call: Call) -> Wanted:
        model = self._model_of(call)
        salt = _salt("", call.body.get("cache_salt"))
        prompt = None
        if self.config.routing.policy in BY_PREFIX and call.endpoint.kind is not Kind.TEXT:
            prompt = self.router.index.read(
                call.body, model=model, salt=salt, num_tokens=call.prompt_tokens
            )
        return Wanted(
            model=model,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            session=_session(call, self.config.routing.session_headers),
            salt=salt,
            suits=_suits(call),
            prompt=prompt,
        )

    def _model_of(self, call: Call) -> str:
        """The name at the replicas. Raises ModelNotFoundError, or BadRequestError where several could be meant."""
        if call.model and self.router.knows(call.model):
            return call.model
        models = tuple(sorted(self.registry.models()))
        if call.model:
            raise ModelNotFoundError(call.model, models)
        if len(models) != 1:
            raise BadRequestError(
                f"'model' is required: {', '.join(models) or 'no model'} served here.",
                param="model",
            )
        return models[0]


def _session(call: Call, names: tuple[str, ...]) -> str:
    found = next((call.headers[name] for name in names if name in call.headers), "")
    user = call.body.get("user")
    return found or (user if isinstance(user, str) else "")


def _salt(tenant: str, given: object) -> str:
    """One that no client can make: tenants share no cache, whatever salts they send."""
    if not tenant and not given:
        return ""
    text = msgspec.json.encode([tenant, given if isinstance(given, str) else ""])
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _suits(call: Call) -> Callable[[Replica], bool]:
    needs = call.endpoint.needs

    def suits(replica: Replica) -> bool:
        return replica.spec.role is not ReplicaRole.PREFILL and needs <= set(
            replica.spec.capabilities
        )

    return suits
