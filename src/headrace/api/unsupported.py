"""Fields that change the answer and are not served yet: refused by name, never ignored."""

from collections.abc import Callable
from typing import Any

from headrace.api.chat import AudioPart, ChatRequest, FilePart, ImagePart
from headrace.api.completions import CompletionRequest
from headrace.api.fields import GenerationFields
from headrace.core.errors import BadRequestError

Harmless = Callable[[Any], bool]


def _falsy(value: Any) -> bool:
    return not value


def _text_only(value: Any) -> bool:
    return not value or value == ["text"]


def _is_one(value: Any) -> bool:
    return bool(value == 1)


#: Field → values that ask for nothing. Anything else is a 400.
_COMMON: dict[str, Harmless] = {
    "logits_processors": _falsy,
    "spaces_between_special_tokens": lambda value: isinstance(value, bool),
}
_CHAT: dict[str, Harmless] = {
    "best_of": _is_one,
    "audio": _falsy,
    "modalities": _text_only,
    "prediction": _falsy,
    "web_search_options": lambda value: value is None,
    "documents": _falsy,
    "echo": _falsy,
}
_COMPLETION: dict[str, Harmless] = {
    "suffix": _falsy,
    "prompt_embeds": _falsy,
}


def refuse_unsupported(request: GenerationFields) -> None:
    """Raise a BadRequestError for the first field that asks for something we do not do."""
    _check(request, _COMMON)
    if isinstance(request, ChatRequest):
        _check(request, _CHAT)
        _check_parts(request)
    if isinstance(request, CompletionRequest):
        _check(request, _COMPLETION)


def _check(request: GenerationFields, table: dict[str, Harmless]) -> None:
    for field, is_harmless in table.items():
        value = getattr(request, field)
        if value is not None and not is_harmless(value):
            raise BadRequestError(
                f"'{field}' is not supported by this server; leave it out.",
                param=field,
                code="unsupported_parameter",
            )


def _check_parts(request: ChatRequest) -> None:
    for index, message in enumerate(request.messages):
        if not isinstance(message.content, list):
            continue
        for place, part in enumerate(message.content):
            if isinstance(part, ImagePart | AudioPart | FilePart):
                param = f"messages[{index}].content[{place}]"
                raise BadRequestError(
                    f"This model reads text only; '{param}' is of type "
                    f"'{type(part).__struct_config__.tag}'.",
                    param=param,
                    code="unsupported_content",
                )
