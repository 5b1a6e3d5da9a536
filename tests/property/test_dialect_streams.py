"""Streams of the dialects add up to the answer that does not stream, however the deltas are cut."""

import json
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace.api.usage import Usage
from headrace.completion.delta import CallDelta, Delta, join
from headrace.core.events import FinishReason
from headrace.server.dialects.messages_shape import MessagesShape
from headrace.server.shapes import Head

HEAD = Head("msg_1", 7, "m", "f")
USAGE = Usage(prompt_tokens=5, completion_tokens=3, total_tokens=8)
TEXT = st.text(alphabet='ab{"\\\u2028é😀 \n', min_size=1, max_size=5)
ENDS = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT])


@st.composite
def answers(draw) -> list[Delta]:
    """Thought, then text, then calls, cut anywhere: what models of every format say."""
    pieces: list[Delta] = []
    pieces += [Delta(index=0, thought=text) for text in draw(st.lists(TEXT, max_size=4))]
    pieces += [Delta(index=0, text=text) for text in draw(st.lists(TEXT, max_size=4))]
    num_calls = draw(st.integers(0, 3))
    for number in range(num_calls):
        call = CallDelta(index=number, id=f"call_{number}", name=f"f{number}")
        pieces.append(Delta(index=0, calls=(call,)))
        arguments = json.dumps({"a": draw(TEXT), "n": number})
        cut = draw(st.integers(0, len(arguments)))
        for part in (arguments[:cut], arguments[cut:]):
            if part:
                more = CallDelta(index=number, arguments=part)
                pieces.append(Delta(index=0, calls=(more,)))
    grouped: list[Delta] = []
    while pieces:
        size = draw(st.integers(1, len(pieces)))
        grouped.append(join(0, pieces[:size]))
        pieces = pieces[size:]
    end = Delta(index=0, finish=draw(ENDS), has_called=num_calls > 0)
    if grouped and draw(st.booleans()):  # the end comes with the last piece, or alone
        end = join(0, [grouped.pop(), end])
    return [*grouped, end]


def events_of(shape, deltas: list[Delta]) -> list[dict]:
    return [
        json.loads(chunk)
        for number, delta in enumerate(deltas)
        for chunk in shape.chunks(0, delta, is_first=number == 0, usage=lambda: USAGE)
    ]


@dataclass
class Reader:
    """A message as Anthropic's clients put it together."""

    message: dict = field(default_factory=dict)
    open: int | None = None
    json: str = ""

    def read(self, event: dict) -> None:
        match event["type"]:
            case "message_start":
                assert not self.message
                self.message = event["message"]
            case "content_block_start":
                assert self.open is None
                assert event["index"] == len(self.message["content"])
                self.open = event["index"]
                self.json = ""
                self.message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == self.open
                self.grow(self.message["content"][self.open], event["delta"])
            case "content_block_stop":
                assert event["index"] == self.open
                block = self.message["content"][self.open]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(self.json or "{}")
                self.open = None
            case "message_delta":
                assert self.open is None
                self.message |= event["delta"] | {"usage": event["usage"]}

    def grow(self, block: dict, delta: dict) -> None:
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self.json += delta["partial_json"]


@given(answers())
def test_messages_add_up(deltas):
    events = events_of(MessagesShape(HEAD), deltas)
    types = [event["type"] for event in events]
    assert types[:2] == ["message_start", "ping"]
    assert types[-2:] == ["message_delta", "message_stop"]
    assert types.count("message_start") == types.count("message_stop") == 1
    reader = Reader()
    for event in events:
        reader.read(event)
    whole = json.loads(MessagesShape(HEAD).whole([join(0, deltas)], USAGE))
    assert reader.message == whole
