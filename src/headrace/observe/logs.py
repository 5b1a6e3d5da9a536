"""Structured logs on stderr: one line an event, as text for people or as JSON for machines.

A field is given with `extra={"fields": {...}}`. Prompts and answers are never logged.
"""

import logging
import sys
from contextvars import ContextVar
from typing import Any

import msgspec

from headrace.core.errors import ConfigError

#: The request that the current task works for; "-" outside of one.
request_id: ContextVar[str] = ContextVar("headrace_request_id", default="-")

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_STAMP = "%Y-%m-%dT%H:%M:%S"


def set_up_logging(level: str, style: str, *, process: str) -> None:
    """Send the `headrace` loggers of this process to stderr. Raises ConfigError for a wrong word."""
    if level not in _LEVELS:
        raise ConfigError(f"log_level must be one of {', '.join(_LEVELS)}, not '{level}'.")
    if style not in ("text", "json"):
        raise ConfigError(f"log_format must be text or json, not '{style}'.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    logger = logging.getLogger("headrace")
    logger.handlers[:] = [handler]
    logger.setLevel(_LEVELS[level])
    logger.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class TextFormatter(logging.Formatter):
    """`time level process message key=value ...`, the request's id last."""

    def __init__(self, process: str) -> None:
        super().__init__(datefmt=_STAMP)
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        parts = [
            f"{self.formatTime(record, _STAMP)}.{int(record.msecs):03d}",
            f"{record.levelname.lower():<7}",
            f"{self._process}:",
            one_line(record.getMessage()),
        ]
        parts += [f"{key}={one_line(str(value))}" for key, value in _fields(record).items()]
        if request_id.get() != "-":
            parts.append(f"request_id={request_id.get()}")
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__(datefmt=_STAMP)
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, _STAMP)}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get() != "-":
            line["request_id"] = request_id.get()
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def one_line(text: str) -> str:
    """Text from outside with its control characters shown, so that nobody can forge a log line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
