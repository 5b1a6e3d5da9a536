"""JSON files that come with a model: bounded, and always an object."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.core.errors import ModelLoadError

MAX_JSON_BYTES: Final = 64 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelLoadError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MAX_JSON_BYTES:
        raise ModelLoadError(f"{path} is larger than {MAX_JSON_BYTES} bytes.")
    try:
        value = _decode(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object.")
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """The same; empty where there is no such file."""
    return read_json_object(path) if path.exists() else {}


def read_text(path: Path) -> str:
    """A small UTF-8 text file, such as a chat template."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_JSON_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}.") from error


def _decode(content: bytes) -> Any:
    """Raises ValueError or RecursionError. Twice as fast as the standard reader on a tokenizer's megabytes."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Some config.json hold NaN and Infinity, which only the standard reader takes. It also takes halves
        # of surrogate pairs, which are no text: encoding them is an error.
        value = json.loads(content)
        json.dumps(value, ensure_ascii=False).encode()
        return value
