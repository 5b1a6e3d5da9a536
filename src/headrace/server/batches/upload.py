"""A file that comes as `multipart/form-data` (RFC 7578): straight to the disk, in bounded memory."""

import asyncio
from pathlib import Path
from typing import IO, Any, Final

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from headrace.core.errors import BadRequestError, BodyTooLargeError, UnsupportedMediaError
from headrace.web.asgi import Receive, Scope, header

#: What is not the file itself: parts, bytes of a part's headers, bytes of a plain field.
MAX_PARTS: Final = 16
MAX_PART_HEADERS: Final = 8192
MAX_FIELD: Final = 1024
MAX_NAME_CHARS: Final = 255
#: Bytes that are gathered before they are written.
_PIECE: Final = 256 * 1024


class Form(dict[str, str]):
    """The plain fields, and the name of the file."""

    filename: str | None = None


class _Reader:
    """The parser's callbacks. Bytes of the file gather in `piece`; they raise BadRequestError."""

    def __init__(self, max_bytes: int) -> None:
        self.form = Form()
        self.piece = bytearray()
        self.num_bytes = 0
        self.is_complete = False
        self._max_bytes = max_bytes
        self._num_parts = 0
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._num_header_bytes = 0
        self._field: str | None = None
        self._text = bytearray()

    def on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise BadRequestError(f"The form has more than {MAX_PARTS} parts.")
        self._headers, self._name, self._value, self._num_header_bytes = {}, b"", b"", 0

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._count_header(end - start)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count_header(end - start)

    def on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        self._text = bytearray()
        self._field = name
        if name == "file":
            if self.form.filename is not None:
                raise BadRequestError("The form has several files.", param="file")
            given = options.get(b"filename", b"").decode("utf-8", "replace")
            last = given.replace("\\", "/").rpartition("/")[2][:MAX_NAME_CHARS]
            self.form.filename = last or "file"
        elif b"filename" in options:
            raise BadRequestError("The file must be in the field 'file'.", param="file")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field == "file":
            self.num_bytes += end - start
            if self.num_bytes > self._max_bytes:
                raise BodyTooLargeError(
                    f"The file has more than {self._max_bytes} bytes (max_file_bytes, or what batch_storage leaves).",
                    param="file",
                )
            self.piece += data[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD:
            name = (self._field or "")[:MAX_NAME_CHARS]
            raise BadRequestError(f"'{name}' has more than {MAX_FIELD} bytes.", param=name)

    def on_part_end(self) -> None:
        if self._field is not None and self._field != "file":
            self.form[self._field] = self._text.decode("utf-8", "replace")
        self._field = None

    def on_end(self) -> None:
        self.is_complete = True

    def _count_header(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_PART_HEADERS:
            raise BadRequestError(f"A part's headers have more than {MAX_PART_HEADERS} bytes.")


async def receive_file(scope: Scope, receive: Receive, path: Path, max_bytes: int) -> Form | None:
    """Read the form; its file is then at `path`. None when the client left.

    Raises BadRequestError, and UnsupportedMediaError for what is no form.
    """
    reader = _Reader(max_bytes)
    parser = MultipartParser(_boundary(scope), _callbacks(reader))
    opened = await asyncio.to_thread(path.open, "wb")
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            _note_progress(scope, len(message.get("body", b"")))
            _feed(parser, message.get("body", b""))
            is_last = not message.get("more_body", False)
            if len(reader.piece) >= _PIECE or (is_last and reader.piece):
                await _write(opened, reader)
            if is_last:
                break
    finally:
        await asyncio.to_thread(opened.close)
    if not reader.is_complete:
        raise BadRequestError("The form ends too early.", code="invalid_form")
    if reader.form.filename is None:
        raise BadRequestError(
            "'file' is required.", param="file", code="missing_required_parameter"
        )
    return reader.form


async def _write(opened: IO[bytes], reader: _Reader) -> None:
    piece, reader.piece = reader.piece, bytearray()
    await asyncio.to_thread(opened.write, piece)


def _feed(parser: MultipartParser, data: bytes) -> None:
    try:
        parser.write(data)
    except MultipartParseError:
        raise BadRequestError("The body is no valid form.", code="invalid_form") from None


def _boundary(scope: Scope) -> bytes:
    kind, options = parse_options_header(header(scope, b"content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise UnsupportedMediaError("A file is sent as 'multipart/form-data'.")
    if len(boundary) > 200:
        raise BadRequestError("The form's boundary is too long.", code="invalid_form")
    return boundary


def _callbacks(reader: _Reader) -> Any:
    names = (
        "on_part_begin", "on_part_data", "on_part_end", "on_header_field", "on_header_value",
        "on_header_end", "on_headers_finished", "on_end",
    )  # fmt: skip
    return {name: getattr(reader, name) for name in names}


def _note_progress(scope: Scope, num_bytes: int) -> None:
    """Large files may take long, as long as they come on."""
    scope["headrace.progress"] = scope.get("headrace.progress", 0) + num_bytes
