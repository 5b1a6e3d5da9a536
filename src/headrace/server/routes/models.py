"""`GET /v1/models` and `GET /v1/models/{id}`."""

from headrace.api.models import ModelCard, ModelList
from headrace.core.errors import ModelNotFoundError
from headrace.core.model_info import ModelInfo
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.web.asgi import App, Receive, Scope, Send, send_json
from headrace.web.endpoint import Operation

LIST = Operation(summary="List the names of models", tag="models", response=ModelList)
ONE = Operation(summary="Show one model", tag="models", response=ModelCard, errors=(404,))


def list_models(replica: Replica) -> App:
    """All names under which models are served."""

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, ModelList(data=_cards(replica)))

    return respond


def one_model(replica: Replica) -> App:
    """One of them; names may hold slashes."""

    async def respond(scope: Scope, _receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        cards = _cards(replica)
        for card in cards:
            if card.id == name:
                await send_json(send, card)
                return
        raise ModelNotFoundError(name, tuple(card.id for card in cards))

    return respond


def _cards(replica: Replica) -> list[ModelCard]:
    models = [(key, model, model.info or model.known) for key, model in replica.models.items()]
    cards = [
        _card(replica, model, name, info, key if info is None else info.source)
        for key, model, info in models
        for name in model.base_names
    ]
    return cards + [
        _card(replica, model, adapter.name, info, adapter.path, parent=info.names[0])
        for _, model, info in models
        if info is not None
        for adapter in info.adapters
    ]


def _card(
    replica: Replica,
    model: ServedModel,
    name: str,
    info: ModelInfo | None,
    root: str,
    *,
    parent: str | None = None,
) -> ModelCard:
    return ModelCard(
        id=name,
        created=replica.created,
        root=root,
        parent=parent,
        max_model_len=None if info is None else info.max_context,
        capabilities=[] if info is None else [task.value for task in info.tasks],
        status=model.state,
    )
