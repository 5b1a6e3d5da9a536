"""OpenAI's error object."""

from msgspec import Struct


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong. `param` is the field, as a dotted path; `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ProblemBody(Struct, frozen=True, kw_only=True):
    """The body of every error response, and the data of an error inside a stream."""

    error: Problem
