"""JSON files that come with a model: bounded, and always an object."""

import json
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import ModelLoadError

MAX_JSON_BYTES: Final = 64 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. The standard reader, as some config.json hold NaN and Infinity."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MAX_JSON_BYTES:
        raise ModelLoadError(f"{path} is larger than {MAX_JSON_BYTES} bytes.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object.")
    return value


def read_text(path: Path) -> str:
    """A small UTF-8 text file, such as a chat template."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_JSON_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}.") from error
