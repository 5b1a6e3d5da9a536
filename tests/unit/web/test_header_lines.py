"""Headers hold names that clients, operators and replicas have made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.web.asgi import start_message


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "é", "猫", "\x00", "\x7f", "a\tb"])
def test_no_value_begins_another_header(value):
    for message in (start_message(200, "x", {"name": value}), start_message(200, value)):
        assert all(32 <= byte < 127 for _, line in message["headers"] for byte in line)


@given(st.text())
def test_any_text_can_stand_in_a_header(value):
    ((_, _), (name, line)) = start_message(200, "x", {"name": value})["headers"]
    assert name == b"name"
    assert len(line) == len(value)
    if value.isascii() and value.isprintable():
        assert line == value.encode()
