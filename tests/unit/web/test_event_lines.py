"""An event is one line, for every notion of a line that clients have."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.web.streaming import event

BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


@given(
    st.text(st.one_of(st.sampled_from(BREAKS + "é漢😀"), st.characters(exclude_categories=["Cs"])))
)
def test_text_of_any_kind_stays_on_its_line(text: str) -> None:
    line, rest = event(msgspec.json.encode({"text": text})).decode().splitlines()
    assert rest == ""
    assert json.loads(line.removeprefix("data: ")) == {"text": text}
