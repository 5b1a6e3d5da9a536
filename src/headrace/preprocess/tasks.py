"""Which requests a model can answer at all."""

from headrace.core.errors import BadRequestError
from headrace.core.model_info import ModelInfo, Task


def check_makes_text(info: ModelInfo) -> None:
    """Raise a BadRequestError that names the right endpoints if the model is an encoder."""
    if Task.GENERATE in info.tasks:
        return
    where = "/v1/score and /v1/rerank" if Task.SCORE in info.tasks else "/v1/embeddings"
    raise BadRequestError(
        f"The model '{info.names[0]}' makes no text. It is an encoder: use {where}.",
        param="model",
        code="unsupported_task",
    )
