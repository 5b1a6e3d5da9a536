"""Log lines: one an event, whatever is in it."""

import json
import logging

import pytest

from headrace.core.errors import ConfigError
from headrace.observe.logs import JsonFormatter, TextFormatter, one_line, request_id, set_up_logging


def record(message, **extra):
    made = logging.LogRecord("headrace.x", logging.INFO, "f", 1, message, (), None)
    made.__dict__.update(extra)
    return made


def test_text_has_fields_and_the_request_and_no_second_line():
    token = request_id.set("abc")
    try:
        line = TextFormatter("server").format(record("hello\nforged", fields={"a": "1\r2"}))
    finally:
        request_id.reset(token)
    assert line.endswith("info    server: hello\\nforged a=1\\r2 request_id=abc")


def test_json_is_one_object_a_line():
    line = JsonFormatter("engine").format(record("hel\nlo", fields={"seconds": 1.5, "odd": object}))
    assert "\n" not in line
    read = json.loads(line)
    assert (read["message"], read["process"], read["seconds"]) == ("hel\nlo", "engine", 1.5)


def test_unprintable_text_is_shown():
    assert one_line("a\x1b[31mb\u2028") == "a\\x1b[31mb\\u2028"


@pytest.mark.parametrize(("level", "style"), [("loud", "text"), ("info", "xml")])
def test_wrong_words_are_configuration_errors(level, style):
    with pytest.raises(ConfigError):
        set_up_logging(level, style, process="x")
