"""`/control`, for those who run the server: its models are parked, woken, loaded and unloaded by message.

The routes are there only where the operator has set a control token, and answer to nothing else: not to API keys, nor to
the token of peers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar
from urllib.parse import parse_qs

from msgspec import structs

from headrace.api.control import (
    ControlAnswer,
    ControlledModel,
    ControlRequest,
    ControlState,
    LoadModelRequest,
    Sleeping,
)
from headrace.config.engine import EngineConfig, paced
from headrace.config.hosting import overridden
from headrace.config.server import Dialect
from headrace.core.errors import BadRequestError, ConfigError, UnavailableError
from headrace.core.stats import ReplicaState
from headrace.engine.failure import EngineStartError
from headrace.server.auth import check_control
from headrace.server.calls import Call, receiving
from headrace.server.lora_root import LoraRoot
from headrace.server.model_life import ModelLife
from headrace.server.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_body, send_json
from headrace.web.endpoint import Access, Endpoint, Operation

_T = TypeVar("_T", ControlRequest, LoadModelRequest)


def _operation(summary: str, description: str = "", *, request: type | None = None) -> Operation:
    return Operation(
        summary=summary,
        tag="control",
        description=description,
        request=request,
        response=ControlAnswer,
        access=Access.CONTROL,
        errors=(401, 403, 404, 503),
    )


_SHOW = Operation(
    summary="The states of the models", tag="control", response=ControlState, access=Access.CONTROL
)
_PARK = _operation(
    "Park a model",
    "It takes no new requests; those that run end, or are cut short after `timeout` seconds. Then the memory of "
    "keys and values is given back, and the model stays mapped. `/control/unpark` makes it serve again at once.",
    request=ControlRequest,
)
_UNPARK = _operation(
    "Wake a parked model, or end a drain", "It takes requests again.", request=ControlRequest
)
_DRAIN = _operation(
    "Take no new requests for a model",
    "Answers when those that run have ended, or after `timeout` seconds; `/control/unpark` undoes it.",
    request=ControlRequest,
)
_UNLOAD = _operation(
    "Unload a model",
    "As parking, but weights are given back too; the engine process stays, ready to load.",
    request=ControlRequest,
)
_LOAD = _operation(
    "Load a model",
    "In the place of what is there. One that cannot be loaded is a 400 that says why, and leaves no model.",
    request=LoadModelRequest,
)
_SLEEP = Operation(
    summary="Park the model, as vLLM calls it",
    tag="control",
    description="`level` 1 gives back keys and values, 2 weights too. Only with `--dialect vllm`.",
    query={"level": {"type": "integer", "enum": [1, 2], "default": 1}},
    content_type="text/plain",
    access=Access.CONTROL,
)
_WAKE_UP = Operation(
    summary="Wake the model, as vLLM calls it",
    tag="control",
    description="Only with `--dialect vllm`.",
    content_type="text/plain",
    access=Access.CONTROL,
)
_IS_SLEEPING = Operation(
    summary="Is the model parked, as vLLM asks",
    tag="control",
    description="Only with `--dialect vllm`.",
    response=Sleeping,
    access=Access.CONTROL,
)

#: What an order does to a model; the seconds are its requests' to end in.
Act = Callable[[ModelLife, float], Awaitable[object]]


def endpoints(replica: Replica) -> list[Endpoint]:
    """All of them, or none."""
    token = replica.config.security.control_token
    if token is None:
        return []
    control = Control(replica, token)
    found = [
        Endpoint("GET", "/control", control.guarded(control.show), _SHOW),
        *(
            Endpoint("POST", f"/control/{name}", control.guarded(control.ordered(act)), operation)
            for name, act, operation in (
                ("park", control.park, _PARK),
                ("unpark", control.unpark, _UNPARK),
                ("drain", control.drain, _DRAIN),
                ("unload", control.unload, _UNLOAD),
            )
        ),
        Endpoint("POST", "/control/load", control.guarded(control.load), _LOAD),
    ]
    if replica.config.dialect is Dialect.VLLM:
        found += [
            Endpoint("POST", "/sleep", control.guarded(control.sleep), _SLEEP),
            Endpoint("POST", "/wake_up", control.guarded(control.wake_up), _WAKE_UP),
            Endpoint("GET", "/is_sleeping", control.guarded(control.is_sleeping), _IS_SLEEPING),
        ]
    return found


class Control:
    """The handlers."""

    def __init__(self, replica: Replica, token: str) -> None:
        self._replica = replica
        self._token = token
        self._patience = replica.config.drain_timeout

    def guarded(self, app: App) -> App:
        """The same, for whoever has the token."""

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            check_control(scope, self._token)
            await app(scope, receive, send)

        return respond

    # -- what is there ------------------------------------------------------------------------------

    async def show(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """`GET /control`."""
        models = tuple(
            ControlledModel(
                name=model.name,
                state=model.state,
                memory_bytes=0 if model.info is None else model.info.memory_bytes,
                num_requests=model.num_users,
            )
            for model in self._replica.models.values()
        )
        await send_json(send, ControlState(state=self._replica.state, models=models))

    # -- orders -----------------------------------------------------------------------------------

    def ordered(self, act: Act) -> App:
        """The handler of an order about one model."""

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            async with receiving(self._replica, scope, receive) as call:
                if call is None:
                    return
                wire = _body(call, ControlRequest)
                life = self._life(wire.model)
                began = self._replica.clock.monotonic()
                await act(life, self._patience if wire.timeout is None else wire.timeout)
                answer = self._answer(life, began)
            await send_json(send, answer)

        return respond

    async def park(self, life: ModelLife, patience: float) -> None:
        """Requests end, then memory is given back."""
        await life.park(patience)

    async def unpark(self, life: ModelLife, _patience: float) -> None:
        """It takes requests again."""
        await life.resume()

    async def drain(self, life: ModelLife, patience: float) -> None:
        """It takes no new requests; waits for those that it has."""
        await life.drain(patience)

    async def unload(self, life: ModelLife, patience: float) -> None:
        """Requests end, then everything is given back."""
        shelf = self._replica.shelf
        if shelf is None:
            await life.unload(patience)
            self._replica.count_places()
        else:
            await shelf.evict(life, patience)

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /control/load`."""
        async with receiving(self._replica, scope, receive) as call:
            if call is None:
                return
            wire = _body(call, LoadModelRequest)
            began = self._replica.clock.monotonic()
            if self._replica.shelf is not None:
                life = await self._bring(wire)
            else:
                life = self._life(None)
                await self._load(life, wire)
            if wire.parked:
                await life.park(self._patience)
            answer = self._answer(life, began)
        await send_json(send, answer)

    async def _bring(self, wire: LoadModelRequest) -> ModelLife:
        """One of several models, as it was configured."""
        if wire.served_model_name or wire.settings:
            field = "settings" if wire.settings else "served_model_name"
            raise BadRequestError(
                f"'{field}' is for servers of one model; those of several are configured.",
                param=field,
            )
        life = self._life(wire.model)
        with ExitStack() as held:
            await self._replica.obtain(life.model.name, held)
        return life

    async def _load(self, life: ModelLife, wire: LoadModelRequest) -> None:
        patience = self._patience if wire.timeout is None else wire.timeout
        try:
            config = self._config(life.config, wire)
            root = config.model.lora_root
            lora_root = None if root is None else await asyncio.to_thread(LoraRoot, root)
            await life.load(config, patience)
        except ConfigError as error:
            raise BadRequestError(str(error), param="model", code="model_not_loadable") from error
        except EngineStartError as error:
            raise UnavailableError(str(error)) from error
        life.model.lora_root = lora_root

    def _config(self, base: EngineConfig, wire: LoadModelRequest) -> EngineConfig:
        try:
            config = overridden(base, wire.settings, "settings")
        except ConfigError as error:
            raise BadRequestError(str(error), param="settings") from None
        if wire.model is not None:
            names = wire.served_model_name
            model = structs.replace(config.model, model=wire.model, served_model_name=names)
            config = structs.replace(config, model=model)
        return paced(config, self._replica.config.watchdog_timeout)

    # -- as vLLM has it ---------------------------------------------------------------------------

    async def sleep(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """`POST /sleep?level=1|2`."""
        level = parse_qs(scope["query_string"].decode("latin-1")).get("level", ["1"])[-1]
        if level not in ("1", "2"):
            raise BadRequestError("'level' must be 1 or 2.", param="level")
        life = self._life(None)
        act = self.park if level == "1" else self.unload
        await act(life, self._patience)
        await send_body(send, b"", content_type="text/plain")

    async def wake_up(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """`POST /wake_up`."""
        life = self._life(None)
        if life.state is ReplicaState.EMPTY and self._replica.shelf is None:
            await self._load(life, LoadModelRequest())
        else:
            await life.resume()
        await send_body(send, b"", content_type="text/plain")

    async def is_sleeping(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """`GET /is_sleeping`."""
        asleep = (ReplicaState.PARKED, ReplicaState.EMPTY)
        await send_json(send, Sleeping(is_sleeping=self._life(None).state in asleep))

    # -- inside -----------------------------------------------------------------------------------

    def _life(self, name: str | None) -> ModelLife:
        lives = self._replica.lives
        if name is None:
            if len(lives) != 1:
                raise BadRequestError(
                    "'model' is required: there are several models here.", param="model"
                )
            return next(iter(lives.values()))
        if len(lives) == 1 and not next(iter(lives.values())).model.names:
            raise UnavailableError("No model is loaded.")
        model = self._replica.find(name)
        return next(life for life in lives.values() if life.model is model)

    def _answer(self, life: ModelLife, began: float) -> ControlAnswer:
        seconds = self._replica.clock.monotonic() - began
        return ControlAnswer(model=life.model.name, state=life.state, seconds=seconds)


def _body(call: Call, kind: type[_T]) -> _T:
    """The body; none is as good as an empty object."""
    return call.decode(kind) if call.body.strip() else kind()
