"""Names that other servers have for fields of ours: one table, and wire fields of the right types.

The fields are known to the decoder, so that they are typed, in `/openapi.json`, and not told as ignored.
Behind `without_aliases` nobody hears of them again.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct, structs

from headrace.api.decode import convert_field
from headrace.core.errors import BadRequestError

#: More than any context has: the answer is then as long as there is room.
_NO_LIMIT: Final = 2**31 - 1

#: By dialect: alias → field.
ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "llama.cpp": {
        "n_predict": "max_tokens",
        "repeat_penalty": "repetition_penalty",
        "n_cmpl": "n",
        "n_probs": "logprobs",
    },
    "SGLang": {
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "sampling_seed": "seed",
        "no_stop_trim": "include_stop_str_in_output",
    },
    "Mistral": {"random_seed": "seed"},
}
_PAIRS: Final = tuple(pair for names in ALIASES.values() for pair in names.items())
#: Alias → its values that mean something else here; None asks for nothing.
_MEANINGS: Final[Mapping[str, Mapping[int, int | None]]] = {
    "n_predict": {-1: _NO_LIMIT},
    "n_probs": {0: None},
}

T = TypeVar("T", bound="AliasFields")


class AliasFields(Struct, frozen=True, kw_only=True):
    """Those of all generating routes; see `ALIASES`."""

    n_predict: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """llama.cpp's `max_tokens`; -1: as many as there is room for."""
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    """llama.cpp's `repetition_penalty`."""
    n_cmpl: Annotated[int, Meta(ge=1)] | None = None
    """llama.cpp's `n`."""
    max_new_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """SGLang's `max_tokens`."""
    min_new_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """SGLang's `min_tokens`."""
    sampling_seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """SGLang's `seed`."""
    no_stop_trim: bool | None = None
    """SGLang's `include_stop_str_in_output`."""
    random_seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """Mistral's `seed`."""


def without_aliases(request: T) -> T:
    """The request in our own words. Raises BadRequestError where two names differ about one field."""
    found: dict[str, Any] = {}
    givers: dict[str, str] = {}
    for alias, field in _PAIRS:
        value = getattr(request, alias, None)
        if value is None or not hasattr(request, field):
            continue  # not given, or the shape's own word
        value = _MEANINGS.get(alias, {}).get(value, value)
        other = found.get(field, getattr(request, field))
        if other is not None and other != value:
            raise BadRequestError(
                f"'{alias}' is another name of '{givers.get(field, field)}', and they differ; "
                "give one of them.",
                param=alias,
            )
        found[field], found[alias], givers[field] = value, None, alias
    if not givers:
        return request
    kinds = {field.name: field.type for field in structs.fields(type(request))}
    for field, alias in givers.items():
        convert_field(alias, found[field], kinds[field])
    return structs.replace(request, **found)
