"""Streams of the dialects add up to the answer that does not stream, however the deltas are cut."""

import json
from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.responses import ReasoningOptions, Response, TextOptionsField
from headrace.api.usage import Usage
from headrace.completion.delta import CallDelta, Delta, join
from headrace.core.errors import EngineDeadError, RequestCancelledError
from headrace.core.events import FinishReason
from headrace.server.dialects.messages_shape import MessagesShape
from headrace.server.dialects.responses_shape import ResponsesShape
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


def begun() -> Response:
    return Response(
        id="resp_1", created_at=7, status="in_progress", background=False, instructions=None,
        max_output_tokens=None, max_tool_calls=None, metadata={}, model="m",
        parallel_tool_calls=True, presence_penalty=0.0, frequency_penalty=0.0,
        previous_response_id=None, prompt_cache_key=None, reasoning=ReasoningOptions(),
        safety_identifier=None, store=True, temperature=1.0, text=TextOptionsField(),
        tool_choice="auto", tools=[], top_logprobs=0, top_p=1.0,
    )  # fmt: skip


@dataclass
class ItemReader:
    """A response as OpenAI's clients put it together; every event must fit what came before."""

    output: list[dict] = field(default_factory=list)
    number: int = 0
    open: bool = False

    def read(self, event: dict) -> None:
        assert event["sequence_number"] == self.number
        self.number += 1
        kind = event["type"].removeprefix("response.")
        if kind in ("created", "in_progress", "completed", "incomplete", "failed"):
            assert not self.open
            return
        if kind == "output_item.added":
            assert not self.open
            assert event["output_index"] == len(self.output)
            assert event["item"]["status"] == "in_progress"
            self.open = True
            self.output.append(event["item"])
            return
        assert self.open
        assert event["output_index"] == len(self.output) - 1
        item = self.output[-1]
        if kind == "output_item.done":
            assert event["item"] == item | {"status": event["item"]["status"]}
            self.output[-1] = event["item"]
            self.open = False
            return
        assert event["item_id"] == item["id"]
        self.inside(kind, event, item)

    def inside(self, kind: str, event: dict, item: dict) -> None:
        match kind:
            case "content_part.added":
                assert event["content_index"] == len(item["content"])
                item["content"].append(event["part"])
            case "content_part.done":
                assert event["part"] == item["content"][0]
            case "output_text.delta" | "reasoning_text.delta":
                item["content"][0]["text"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == item["content"][0]["text"]
            case "function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
            case _:
                raise AssertionError(kind)


@given(answers())
def test_responses_add_up(deltas):
    kept: list[Response] = []
    made = events_of(ResponsesShape(begun(), {}, lambda: 9.0, kept.append), deltas)
    types = [event["type"] for event in made]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] in ("response.completed", "response.incomplete")
    reader = ItemReader()
    for event in made:
        reader.read(event)
    whole = json.loads(
        ResponsesShape(begun(), {}, lambda: 9.0, kept.append).whole([join(0, deltas)], USAGE)
    )
    assert made[-1]["response"] == whole
    assert reader.output == whole["output"]
    assert kept[0] == kept[1] == msgspec.convert(whole, Response)
    assert (whole["status"] == "completed") == (deltas[-1].finish is FinishReason.STOP)


@given(answers(), st.booleans())
def test_a_failure_keeps_what_there_was(deltas, is_cancelled):
    kept: list[Response] = []
    shape = ResponsesShape(begun(), {}, lambda: 9.0, kept.append)
    made = events_of(shape, deltas[:-1] or [Delta(index=0, text="x")])
    error = RequestCancelledError("gone") if is_cancelled else EngineDeadError("dead")
    (last,) = [json.loads(chunk) for chunk in shape.failure(error, lambda: USAGE)]
    assert last["type"] == "response.failed"
    assert last["sequence_number"] == len(made)
    assert last["response"]["status"] == ("cancelled" if is_cancelled else "failed")
    assert (last["response"]["error"] is None) == is_cancelled
    assert len(kept) == 1
    said = "".join(event["delta"] for event in made if event["type"].endswith("output_text.delta"))
    kept_text = "".join(
        item["content"][0]["text"]
        for item in last["response"]["output"]
        if item["type"] == "message"
    )
    assert kept_text == said
