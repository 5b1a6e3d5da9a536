"""An input file, line by line: what is wrong with it, and where each request is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headrace.api.batches import BatchFault, InputLine
from headrace.api.decode import decode
from headrace.api.depth import check_depth
from headrace.core.errors import BadRequestError

#: Faults that are told; a file may have one in every line.
MAX_FAULTS: Final = 100
#: Fields that would leave the answer elsewhere than in the output.
_REFUSED: Final = {
    "stream": "A batch does not stream.",
    "background": "A request of a batch is in the background already; its answer is in the output.",
}
#: Some editors begin a text with it.
_MARK: Final = b"\xef\xbb\xbf"
#: Bytes in which a line that is too long is skipped.
_PIECE: Final = 65_536


class Place(NamedTuple):
    """Where a request is in its file."""

    number: int
    """Its line; the first is 1."""
    offset: int
    length: int


class LineBounds(msgspec.Struct, frozen=True):
    """What is taken."""

    max_lines: int
    max_bytes: int
    """Of one line."""
    max_depth: int


def survey(
    path: Path, endpoint: str, bounds: LineBounds, is_over: Callable[[], bool] = lambda: False
) -> tuple[list[Place], list[BatchFault]]:
    """All requests of a file, and all faults: with one of these, nothing is begun.

    Stops early, with what it has, when `is_over`.
    """
    places: list[Place] = []
    faults: list[BatchFault] = []
    seen: dict[str, int] = {}
    for place, line in _lines(path, bounds.max_bytes):
        if is_over() or len(faults) >= MAX_FAULTS:
            break
        if len(places) >= bounds.max_lines:
            text = f"There are more than {bounds.max_lines} requests (max_batch_lines)."
            faults.append(BatchFault(code="too_many_requests", message=text))
            break
        try:
            if line is None:
                raise BadRequestError(
                    f"The line has more than {bounds.max_bytes} bytes.", code="line_too_long"
                )
            custom_id = check_line(line, endpoint, bounds.max_depth)
            if custom_id in seen:
                raise BadRequestError(
                    f"Line {seen[custom_id]} has this 'custom_id' too.",
                    param="custom_id",
                    code="duplicate_custom_id",
                )
        except BadRequestError as error:
            code = error.code or "invalid_request"
            faults.append(
                BatchFault(code=code, message=str(error), param=error.param, line=place.number)
            )
            continue
        seen[custom_id] = place.number
        places.append(place)
    if not places and not faults:
        faults.append(BatchFault(code="empty_file", message="The file holds no request."))
    return places, faults


def check_line(line: bytes, endpoint: str, max_depth: int) -> str:
    """The `custom_id` of a line that is good, but for its body's fields. Raises BadRequestError."""
    check_depth(line, max_depth)
    found = decode(line, InputLine)
    if found.url != endpoint:
        raise BadRequestError(
            f"'url' must be '{endpoint}', the endpoint of the batch.",
            param="url",
            code="mismatched_endpoint",
        )
    fields = decode(bytes(found.body), dict[str, msgspec.Raw])
    for name, why in _REFUSED.items():
        if name in fields and bytes(fields[name]) not in (b"false", b"null"):
            raise BadRequestError(why, param=f"body.{name}")
    return found.custom_id


def read_line(path: Path, place: Place) -> InputLine:
    """A line that `survey` found good."""
    with path.open("rb") as opened:
        opened.seek(place.offset)
        return msgspec.json.decode(opened.read(place.length), type=InputLine)


def _lines(path: Path, max_bytes: int) -> Iterator[tuple[Place, bytes | None]]:
    """Lines that are not blank, without their ends; None for one that is too long."""
    with path.open("rb") as opened:
        offset = len(_MARK) if opened.read(len(_MARK)) == _MARK else 0
        opened.seek(offset)
        number = 0
        while line := opened.readline(max_bytes + 2):
            number += 1
            text, length = line.rstrip(b"\r\n"), len(line)
            is_long = len(text) > max_bytes
            while not line.endswith(b"\n") and (line := opened.readline(_PIECE)):
                length += len(line)
                is_long = True
            if is_long or text.strip():
                yield Place(number, offset, len(text)), None if is_long else text
            offset += length
