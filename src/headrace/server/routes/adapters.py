"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.api.adapters import LoadAdapterRequest, UnloadAdapterRequest
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.observe.logs import one_line
from headrace.server.calls import Call, receiving
from headrace.server.lora_root import LoraRoot
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.web.asgi import App, Receive, Scope, Send, send_body
from headrace.web.endpoint import Endpoint, Operation

_TEXT = "text/plain; charset=utf-8"

LOAD = Operation(
    summary="Load a LoRA adapter",
    tag="models",
    description=(
        "From a directory below the server's `--lora-root`; its name is a model's name from then on. "
        "Where the server has no `--lora-root` there is nothing to load from: 404."
    ),
    request=LoadAdapterRequest,
    content_type=_TEXT,
    example={"lora_name": "sql", "lora_path": "sql"},
    errors=(403, 404),
)
UNLOAD = Operation(
    summary="Unload a LoRA adapter",
    tag="models",
    description="New requests for it are answered 404; those that run are answered to their ends.",
    request=UnloadAdapterRequest,
    content_type=_TEXT,
    example={"lora_name": "sql"},
    errors=(404,),
)

log = logging.getLogger("headrace.server")


def endpoints(replica: Replica) -> list[Endpoint]:
    """Both routes."""
    return [
        Endpoint("POST", "/v1/load_lora_adapter", load(replica), LOAD),
        Endpoint("POST", "/v1/unload_lora_adapter", unload(replica), UNLOAD),
    ]


def load(replica: Replica) -> App:
    """The handler that loads."""

    async def act(call: Call) -> str:
        wire = call.decode(LoadAdapterRequest)
        model, root = _target(replica, wire.model)
        name = wire.lora_name
        if not name.isprintable():
            raise BadRequestError("'lora_name' must be printable.", param="lora_name")
        if wire.is_3d_lora_weight:
            raise BadRequestError(
                "'is_3d_lora_weight': models with experts are not served here.",
                param="is_3d_lora_weight",
                code="unsupported_parameter",
            )
        path = await asyncio.to_thread(root.find, wire.lora_path)
        model = await call.model(model.name)
        await model.client.load_adapter(name, str(path), in_place=bool(wire.load_inplace))
        log.info("Loaded the adapter '%s' from %s", one_line(name), one_line(str(path)))
        return f"Success: LoRA adapter '{name}' added successfully."

    return _telling(replica, act)


def unload(replica: Replica) -> App:
    """The handler that unloads."""

    async def act(call: Call) -> str:
        wire = call.decode(UnloadAdapterRequest)
        holders = [m.name for m in replica.models.values() if wire.lora_name in m.names]
        model, _ = _target(replica, wire.model or (holders[0] if len(holders) == 1 else None))
        model = await call.model(model.name)
        await model.client.unload_adapter(wire.lora_name)
        log.info("Unloaded the adapter '%s'", one_line(wire.lora_name))
        return f"Success: LoRA adapter '{wire.lora_name}' removed successfully."

    return _telling(replica, act)


def _telling(replica: Replica, act: Callable[[Call], Awaitable[str]]) -> App:
    """Answers with a sentence: clients of vLLM look for its words."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async with receiving(replica, scope, receive) as call:
            if call is not None:
                text = await act(call)
                await send_body(send, text.encode(), content_type=_TEXT)

    return respond


def _target(replica: Replica, name: str | None) -> tuple[ServedModel, LoraRoot]:
    """What adapters are loaded into, and from where."""
    models = list(replica.models.values()) if name is None else [replica.find(name)]
    found = [(m, m.lora_root) for m in models if m.lora_root is not None]
    if not found:
        raise NotFoundError(
            "Adapters cannot be loaded while this server runs; it has no --lora-root."
        )
    if len(found) > 1:
        raise BadRequestError(
            "'model' is required: several models here may have adapters.", param="model"
        )
    model, root = found[0]
    assert root is not None
    return model, root
