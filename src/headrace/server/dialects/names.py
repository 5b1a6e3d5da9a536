"""Errors of the chat path name chat's fields; a client hears of the fields that it wrote."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from headrace.api.fields import GenerationFields
from headrace.core.errors import BadRequestError

#: A pattern of chat's name, and what stands there in the dialect.
Names = Sequence[tuple[str, str]]
#: What a message calls a field: its name between quotes.
_QUOTED: Final = re.compile(r"'([A-Za-z_][\w.\[\]]*)'")


@contextmanager
def renamed(names: Names) -> Iterator[None]:
    """Rename the fields of a BadRequestError that is raised inside, in `param` and in its sentence."""
    try:
        yield
    except BadRequestError as error:
        if error.param is not None:
            text = _QUOTED.sub(lambda match: f"'{_rename(match[1], names)}'", str(error))
            error.args = (text, *error.args[1:])
            error.param = _rename(error.param, names)
        raise


def shared_fields(request: GenerationFields) -> dict[str, object]:
    """The fields that a dialect has in common with chat. Raises BadRequestError for several answers."""
    if request.n not in (None, 1):
        raise BadRequestError("'n' must be 1: there is one answer here.", param="n")
    return {name: getattr(request, name) for name in GenerationFields.__struct_fields__}


def _rename(name: str, names: Names) -> str:
    for pattern, replacement in names:
        new, count = re.subn(rf"^{pattern}(?![\w])", replacement, name)
        if count:
            return new
    return name
