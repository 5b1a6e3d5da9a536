"""What every request to a gateway passes through, in order: who is it, what is asked, is it known, have it made."""

import asyncio
import hashlib
import random
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from headrace.config.fleet.root import FleetConfig
from headrace.core.errors import (
    BadRequestError,
    ConfigError,
    ModelNotFoundError,
    NotFoundError,
    UnavailableError,
)
from headrace.fleet.cache.front import REQUEST_HEADER, Inquiry, ResponseCache
from headrace.fleet.cache.serving import serve
from headrace.fleet.gateway.accounts.account import ANONYMOUS, Account
from headrace.fleet.gateway.call import Call, Terms, made_call, read_call
from headrace.fleet.gateway.endpoints import ENDPOINTS, Kind
from headrace.fleet.gateway.gate import CallersGate
from headrace.fleet.gateway.limit import Limit, earlier
from headrace.fleet.gateway.models.needs import Facts, read_needs, suitable
from headrace.fleet.gateway.models.resolve import resolve
from headrace.fleet.gateway.models.values import Asked, Route, Target
from headrace.fleet.gateway.order import Order
from headrace.fleet.gateway.pipelines.runner import Pipelines
from headrace.fleet.gateway.prefix.knowledge import BY_PREFIX
from headrace.fleet.gateway.responses.homes import owner_of
from headrace.fleet.gateway.responses.keepers import Keepers
from headrace.fleet.gateway.router import Router, Wanted
from headrace.fleet.gateway.tools.chat_loop import ChatLoop
from headrace.fleet.gateway.tools.plan import read_plan
from headrace.fleet.gateway.tools.responses_loop import ResponsesLoop
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.fleet.gateway.tools.turn import limit_of
from headrace.fleet.gateway.trade import Trade
from headrace.fleet.replica import Replica
from headrace.web.asgi import Receive, Scope, Send
from headrace.web.bodies import BodyBudget, read_body
from headrace.web.protocol import ON_GONE
from headrace.web.streaming import watch_disconnect
from headrace.web.tracing import trace_of

#: Paths on which the gateway calls tools.
LOOPS: Final[Mapping[str, type[ChatLoop | ResponsesLoop]]] = {
    "/v1/chat/completions": ChatLoop,
    "/v1/responses": ResponsesLoop,
}
#: Where an account is found in a scope.
ACCOUNT = "headrace.account"


class Service:
    """The gateway's way of a request."""

    def __init__(
        self,
        trade: Trade,
        cache: ResponseCache,
        toolbox: Toolbox,
        pipelines: Pipelines,
        keepers: Keepers,
    ) -> None:
        self._trade = trade
        self._toolbox = toolbox
        self.pipelines = pipelines
        self.cache = cache
        self._keepers = keepers
        self._bodies = BodyBudget(trade.config.gateway.max_buffered_bytes)
        self._random = random.Random()
        self.is_draining = False
        self._num_open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def apply(self, config: FleetConfig) -> None:
        """From now on. Raises ConfigError, and changes nothing, for accounts, tools and pipelines that cannot be."""
        self._toolbox.check(config.tools)
        before, pipelines = self.pipelines, self.pipelines.renewed(config.pipelines)
        try:
            self._trade.accounts.configure(config.accounts, config.flow)
        except ConfigError:
            if pipelines is not before:
                pipelines.close()
            raise
        self.pipelines = pipelines
        if pipelines is not before:
            before.retire()
        self._toolbox.apply(config.tools)
        self._trade.admission.configure(config.flow)
        self._trade.canaries.configure(config.models)
        self._trade.dispatcher.apply(config.gateway)
        self._trade.dispatcher.router.config = config
        self._trade = self._trade._replace(config=config)

    @property
    def router(self) -> Router:
        """Who chooses replicas."""
        return self._trade.dispatcher.router

    def authenticate(self, scope: Scope) -> None:
        """Put the account that a request comes from into its scope. Raises AuthenticationError."""
        scope[ACCOUNT] = self._trade.accounts.authenticate(scope)

    def names(self) -> tuple[str, ...]:
        """Names with a rule, beside those of the replicas."""
        rules = self._trade.config.models.rules
        return (*self.pipelines.names, *(rule.name for rule in rules if "*" not in rule.name))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: one request to one of `ENDPOINTS`. A client that leaves ends it everywhere at once."""
        if self.is_draining:
            raise UnavailableError("The gateway is shutting down.")
        account: Account = scope[ACCOUNT]
        self._num_open += 1
        self._idle.clear()
        try:
            with self._bodies.reserve(scope) as reservation:
                raw = await read_body(receive, reservation)
                if raw is None:
                    scope["headrace.status"] = 499
                    return
                if (trace := trace_of(scope)) is not None:
                    trace.add("receive", trace.arrival, self._trade.clock.monotonic())
                await self._while_connected(scope, receive, self._served(scope, send, account, raw))
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._idle.set()

    async def drain(self) -> None:
        """Take nothing new, and wait until all that runs has ended."""
        self.is_draining = True
        await self._idle.wait()

    async def _while_connected(
        self, scope: Scope, receive: Receive, work: Coroutine[None, None, None]
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_gone = is_over = False

        def leave() -> None:
            nonlocal is_gone
            if not is_over:
                is_gone = True
                task.cancel()

        watcher = None
        if ON_GONE in scope:  # cheaper than a task for each request
            scope[ON_GONE] = leave
        else:
            watcher = asyncio.ensure_future(watch_disconnect(receive, leave))
        try:
            await work
        except asyncio.CancelledError:
            if not is_gone:
                raise
            task.uncancel()
            scope["headrace.status"] = 499
        finally:
            is_over = True
            if ON_GONE in scope:
                scope[ON_GONE] = None  # no circle: what it leads to is let go of at once
            if watcher is not None:
                watcher.cancel()

    async def _served(self, scope: Scope, send: Send, account: Account, raw: bytes) -> None:
        call = self._read(scope, raw)
        account.check_model(self._named(call, account))
        await self.serve(call, account, send)

    async def serve(self, call: Call, account: Account, send: Send) -> None:
        """Answer one request, whoever makes it: a client, or a step of something larger. Raises HeadraceError.

        Whether a key may use a model is decided by the name that its client sent; what a pipeline asks for is the
        operator's choice, as the target of an alias is.
        """
        if self.pipelines.knows(call.model):
            if call.endpoint.kind is not Kind.CHAT:
                raise BadRequestError(
                    f"'{call.model}' is a pipeline: it answers chat completions.", param="model"
                )
            await self.pipelines.run(call.model, call.body, CallersGate(self, call, account), send)
            return
        loop_of = LOOPS.get(call.endpoint.path)
        if loop_of is not None and self._toolbox.may_have(call.body.get("tools")):
            name = self._named(call, account)
            plan = await read_plan(self._toolbox, call.body, name, account.tenant)
            if plan is not None:
                limit = limit_of(self._toolbox.config.timeout, self._trade.clock.monotonic())

                async def round_of(body: dict[str, Any], hear: Send) -> None:
                    inner = self.inner(call.endpoint.path, body, call, limit)
                    await self._serve_once(inner, account, hear)

                loop = loop_of(self._toolbox, plan, call.body, call.request_id, round_of)
                await loop.run(send)
                return
        await self._serve_once(call, account, send)

    async def _serve_once(self, call: Call, account: Account, send: Send) -> None:
        name = self._named(call, account)
        route = self._route(call, account, name)
        salt = self._salt(account, call)
        owner = owner_of(account.tenant) if call.endpoint.goes_on else ""
        home = ""
        if call.previous_response:
            route, home = await self._at_home(call, account, route)

        def wanted_of(target: Target) -> Wanted:
            return self._wanted(call, target, salt)._replace(home=home, owner=owner)

        order = Order(self._trade, account, call, route, wanted_of)
        inquiry = self._inquiry(call, account, route.targets[0])
        try:
            outcome = await serve(self.cache, inquiry, send, order.make, order.admit)
        except BaseException as error:
            order.record_untold(error)
            raise
        if not outcome.was_made:
            order.record_told(outcome.usage)

    async def _at_home(self, call: Call, account: Account, route: Route) -> tuple[Route, str]:
        """The way of a request that goes on from a stored response, and the replica that keeps it.

        Raises BadRequestError where that replica is not there, or does not serve the model.
        """
        try:
            replica = await self._keepers.find(account.tenant, call.previous_response)
        except NotFoundError as error:
            raise BadRequestError(
                f"'previous_response_id': {error}",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        targets = tuple(target for target in route.targets if target.model in replica.models)
        if not targets or replica.is_draining:
            what = "takes no new requests" if targets else "does not serve the model"
            raise BadRequestError(
                f"'previous_response_id': the replica that keeps this response {what}; send the conversation instead.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return structs.replace(route, targets=targets), replica.id

    def inner(
        self, path: str, body: Mapping[str, Any], outer: Call, limit: Limit | None = None
    ) -> Call:
        """A request that is made for another one, within the time of that one."""
        made = made_call(
            ENDPOINTS[path],
            msgspec.json.encode(body),
            dict(body),
            outer.headers,
            request_id=outer.request_id,
            arrival=self._trade.clock.monotonic(),
            terms=self._terms(),
            trace=outer.trace,
        )
        limit = earlier(outer.limit, limit)
        return made if limit is None else structs.replace(made, limit=limit)

    # -- what is asked ----------------------------------------------------------------------------

    def _read(self, scope: Scope, raw: bytes) -> Call:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        return read_call(
            ENDPOINTS[scope["path"]],
            raw,
            headers,
            request_id=scope["headrace.request_id"],
            arrival=scope["headrace.arrival"],
            terms=self._terms(),
            trace=trace_of(scope),
        )

    def _terms(self) -> Terms:
        gateway = self._trade.config.gateway
        return Terms(gateway.chars_per_token, gateway.default_max_tokens)

    def _usable(self, account: Account) -> tuple[str, ...]:
        """Models that replicas serve and this key may use: of others a client is told nothing."""
        return tuple(
            sorted(name for name in self._trade.registry.models() if account.may_use(name))
        )

    def _named(self, call: Call, account: Account) -> str:
        """The name that the client means. Raises BadRequestError where several could be meant."""
        if call.model:
            return call.model
        models = self._usable(account)
        if not models:
            which = "" if account.key == ANONYMOUS else " that this key may use"
            raise UnavailableError(f"No replica serves a model{which}.")
        if len(models) != 1:
            raise BadRequestError(
                f"'model' is required; served here are {', '.join(models)}.", param="model"
            )
        return models[0]

    def _route(self, call: Call, account: Account, name: str) -> Route:
        """Raises ModelNotFoundError."""
        config = self._trade.config
        session = _session(call, config.routing.session_headers)
        asked = Asked(
            model=name,
            key=session or ("" if account.key == ANONYMOUS else account.key),
            body=call.body,
            draw=self._random.random(),
        )
        off = self._trade.canaries.off(self._trade.clock.monotonic())
        route = resolve(config.models, off, asked)
        if not any(self.router.knows(target.model) for target in route.targets):
            others = {n for n in self.names() if account.may_use(n)}
            raise ModelNotFoundError(name, tuple(sorted(others.union(self._usable(account)))))
        return route

    def _wanted(self, call: Call, target: Target, salt: str) -> Wanted:
        config = self._trade.config
        prompt = None
        if config.routing.policy in BY_PREFIX and call.endpoint.kind is not Kind.TEXT:
            prompt = self.router.index.read(
                call.body, model=target.model, salt=salt, num_tokens=call.prompt_tokens
            )
        needs = read_needs(
            call.body,
            call.endpoint.needs,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
        )
        return Wanted(
            model=target.model,
            lane=str(target),
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            session=_session(call, config.routing.session_headers),
            salt=salt,
            suited=lambda replicas: suitable(needs, target, replicas, _facts),
            prompt=prompt,
        )

    def _salt(self, account: Account, call: Call) -> str:
        """One that no client can make: tenants share no cache, whatever salts they send."""
        given = call.body.get("cache_salt")
        is_apart = self._trade.config.routing.isolate_tenants and account.tenant != ANONYMOUS
        if not is_apart and not given:
            return ""
        parts = [account.tenant if is_apart else "", given if isinstance(given, str) else ""]
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()

    def _inquiry(self, call: Call, account: Account, target: Target) -> Inquiry | None:
        if not self._trade.config.cache.enabled:
            return None
        return self.cache.ask(
            path=call.endpoint.path,
            body=call.body,
            tenant=account.tenant,
            model=str(target),
            served="" if target.version else target.model,
            header=call.headers.get(REQUEST_HEADER),
            key_mode=account.cache,
        )


def _session(call: Call, names: tuple[str, ...]) -> str:
    found = next((call.headers[name] for name in names if name in call.headers), "")
    user = call.body.get("user")
    return found or (user if isinstance(user, str) else "")


def _facts(replica: Replica) -> Facts:
    spec = replica.spec
    return Facts(
        capabilities=replica.capabilities,
        max_context=replica.max_context,
        version=spec.version,
        labels=spec.labels,
    )
