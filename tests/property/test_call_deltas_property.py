"""A choice with calls: events of any size, continued anywhere, add up to one answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.call_texts import NAMES
from tests.support.tiny_tokenizers import byte_level_tokenizer

from headrace.completion.choice import TextOptions
from headrace.completion.delta import Delta, join
from headrace.completion.respond import Responder
from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.preprocess.reading import Reading, ReasoningReading, ToolReading
from headrace.preprocess.tools.frames import FRAMES

TOKENIZER = byte_level_tokenizer()
FRAME = FRAMES[ToolFormat.HERMES]
CALLS = FRAME.between.join(
    FRAME.begin(name) + arguments + FRAME.tail
    for name, arguments in (("add", '{"a": "é😀", "b": 2}'), ("get", "{}"))
)
THOUGHT = "<think>\nHm, 2?\n</think>\n\n"
FREE = TOKENIZER.encode(f"{THOUGHT}Well: {CALLS} Done.")
FORCED = TOKENIZER.encode(THOUGHT + CALLS)


def reading(*, is_forced: bool, limit: int | None = None) -> Reading:
    return Reading(
        tools=ToolReading(
            format=ToolFormat.HERMES, names=NAMES, is_forced=is_forced, max_calls=limit
        ),
        reasoning=ReasoningReading(format=ReasoningFormat.THINK),
    )


def answer(
    ids: list[int], sizes: list[int], how: Reading, prior: int = 0, *, is_cut: bool = False
) -> list[Delta]:
    """The deltas of an answer whose first `prior` tokens an earlier replica told; `is_cut`: without its end."""
    request = Request(
        request_id="r",
        prompt=(TokenSegment([5]),),
        params=SamplingParams(max_tokens=4096, logprobs=0),
        prior_output_ids=ids[:prior],
    )
    responder = Responder(request, TOKENIZER, TextOptions(reading=how))
    deltas, place, turn = [], prior, 0
    while place < len(ids):
        size = sizes[turn % len(sizes)] if sizes else 1
        piece, turn = tuple(ids[place : place + size]), turn + 1
        place += size
        logprobs = tuple(TokenLogprobs(token_id, -1.0, 1) for token_id in piece)
        finish = FinishReason.LENGTH if place >= len(ids) and not is_cut else None
        outcome = responder.push(TokenEvent("r", 0, piece, logprobs, finish=finish))
        if outcome.delta is not None:
            deltas.append(outcome.delta)
    return deltas


def parts(delta: Delta) -> tuple:
    calls = [(call.index, call.name, call.arguments) for call in delta.calls]
    return delta.text, delta.thought, calls, delta.token_ids, delta.finish, delta.has_called


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.lists(st.integers(1, 30), max_size=6))
def test_events_of_any_size_make_one_answer(is_forced, sizes):
    ids = FORCED if is_forced else FREE
    how = reading(is_forced=is_forced)
    deltas = answer(ids, sizes, how)
    whole = join(0, deltas)
    assert parts(whole) == parts(join(0, answer(ids, [len(ids)], how)))
    assert whole.thought == "Hm, 2?"
    assert whole.text == ("" if is_forced else "Well:  Done.".replace("  ", " "))
    assert [(call.name, call.arguments) for call in whole.calls] == [
        ("add", '{"a": "é😀", "b": 2}'),
        ("get", "{}"),
    ]
    # A name comes once, with an id, before its arguments; every token has its log-probability, once.
    named = [call for delta in deltas for call in delta.calls if call.name is not None]
    assert [call.index for call in named] == [0, 1]
    assert len({call.id for call in named}) == 2
    assert [entry.token_id for delta in deltas for entry in delta.logprobs] == ids


@pytest.mark.parametrize("is_forced", [False, True])
def test_an_answer_is_continued_wherever_it_broke_off(is_forced):
    ids = FORCED if is_forced else FREE
    how = reading(is_forced=is_forced)
    whole = join(0, answer(ids, [1], how))
    for prior in range(1, len(ids)):
        told = answer(ids[:prior], [1], how, is_cut=True)
        rest = answer(ids, [3], how, prior=prior)
        assert parts(join(0, told + rest))[:3] == parts(whole)[:3]
        assert rest[-1].has_called


def test_the_first_call_ends_an_answer_that_may_have_one():
    deltas = answer(FREE, [1], reading(is_forced=False, limit=1))
    whole = join(0, deltas)
    assert [call.name for call in whole.calls] == ["add"]
    assert (whole.finish, whole.stop_reason) == (FinishReason.STOP, None)
    text = TOKENIZER.decode(whole.token_ids)
    assert text.endswith("</tool_call>")
    assert text.count("</tool_call>") == 1
