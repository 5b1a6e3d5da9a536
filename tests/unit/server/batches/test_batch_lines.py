"""Input files: every request is found where it is, every fault is told with its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import CHAT, jsonl, line

from headrace.server.batches.lines import MAX_FAULTS, LineBounds, read_line, survey

BOUNDS = LineBounds(max_lines=50, max_bytes=3000, max_depth=20)


@pytest.fixture
def look(tmp_path):
    def look(content, bounds=BOUNDS):
        path = tmp_path / "input"
        path.write_bytes(content)
        places, faults = survey(path, CHAT, bounds)
        return [read_line(path, place) for place in places], faults

    return look


def test_requests_are_found_behind_marks_and_blanks_and_either_line_end(look):
    one, two, three = (jsonl(line(name)).rstrip() for name in ("one", "two", "drei €"))
    for content in (
        b"\n".join((one, two, three)),
        b"\xef\xbb\xbf" + b"\r\n".join((one, b"", b"  ", two, three, b"", b"")),
    ):
        found, faults = look(content)
        assert faults == []
        assert [item.custom_id for item in found] == ["one", "two", "drei €"]
        assert json.loads(bytes(found[1].body)) == line("two")["body"]


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"", None, None),
        (b"{", "invalid_json", None),
        (b"[]", "invalid_request", None),
        (b'"x"', "invalid_request", None),
        (b"\xff\xfe{}", "invalid_json", None),
        (jsonl({"method": "POST"}), "missing_required_parameter", "custom_id"),
        (jsonl(line("") | {"body": {}}), "invalid_request", "custom_id"),
        (jsonl(line("x") | {"custom_id": 7}), "invalid_request", "custom_id"),
        (jsonl(line("x" * 513)), "invalid_request", "custom_id"),
        (jsonl(line("x") | {"method": "GET"}), "invalid_request", "method"),
        (jsonl(line("x") | {"url": "/v1/completions"}), "mismatched_endpoint", "url"),
        (jsonl(line("x") | {"body": 3}), "invalid_request", None),
        (jsonl(line("x", stream=True)), "invalid_request", "body.stream"),
        (jsonl(line("x", background=True)), "invalid_request", "body.background"),
        (jsonl(line("first")), "duplicate_custom_id", "custom_id"),
        (jsonl(line("x", user="y" * 3000)), "line_too_long", None),
        (b'{"custom_id": "x", "body": ' + b"[" * 30 + b"]" * 30 + b"}", "invalid_json", None),
    ],
)
def test_a_fault_is_told_with_its_line(look, bad, code, param):
    found, faults = look(jsonl(line("first")) + bad.rstrip(b"\n") + b"\n" + jsonl(line("last")))
    assert [item.custom_id for item in found] == ["first", "last"]
    if code is None:
        assert faults == []
        return
    ((fault),) = faults
    assert (fault.line, fault.param) == (2, param)
    assert fault.code in (code, "too_deep")
    assert fault.message


def test_faults_and_requests_are_bounded(look):
    _, faults = look(b"x\n" * 1000)
    assert len(faults) == MAX_FAULTS
    found, faults = look(jsonl(*[line(str(n)) for n in range(60)]))
    assert len(found) == 50
    assert [fault.code for fault in faults] == ["too_many_requests"]
    for empty in (b"", b"\n \n"):
        assert [fault.code for fault in look(empty)[1]] == ["empty_file"]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_requests_or_faults(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "any-input"
    path.write_bytes(b"\n".join([*parts, jsonl(line("good")).rstrip()]))
    places, faults = survey(path, CHAT, LineBounds(max_lines=50, max_bytes=200, max_depth=20))
    assert read_line(path, places[-1]).custom_id == "good"
    assert len(places) + len(faults) <= 1 + sum(part.count(b"\n") + 1 for part in parts)
