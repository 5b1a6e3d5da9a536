"""How deep a JSON text is nested, told before it is decoded."""

from itertools import accumulate
from typing import Final

from headrace.core.errors import BadRequestError

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(body: bytes, max_depth: int) -> None:
    """Raise BadRequestError for lists and objects more than `max_depth` deep. What is no JSON may pass.

    Most bodies have too few brackets to be deep, and those are cheap to count.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    if (
        b"\\" in body
    ):  # escapes go first, backslashes before quotes, so that each quote left begins or ends
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = b"".join(body.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > max_depth:
        raise BadRequestError(
            f"The body is nested more than {max_depth} lists and objects deep (max_json_depth).",
            code="too_deep",
        )
