"""However a stream ends, each choice has one finish, and [DONE] comes once; faults are injected here."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from tests.support.tiny_tokenizers import byte_level_tokenizer

from headrace.api.completions import CompletionRequest
from headrace.completion.choice import TextOptions
from headrace.core.clock import SystemClock
from headrace.core.errors import InternalError, OverloadedError
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.stream import EventStream
from headrace.observe.metrics import Metrics
from headrace.observe.recorder import RequestRecorder
from headrace.server.exchange import Exchange, Plan
from headrace.server.seats import Seats
from headrace.server.shapes import ChatShape, CompletionShape, Head

TOKENIZER = byte_level_tokenizer()
HELLO, SMILE = tuple(TOKENIZER.encode("hello")), tuple(TOKENIZER.encode("😀"))
ERROR, LENGTH = FinishReason.ERROR, FinishReason.LENGTH


class Talk:
    """An exchange whose engine events are given, and what was sent."""

    def __init__(self, *events, n=1, is_peer=False, shape=CompletionShape, stream=True):
        request = Request(
            request_id="r",
            prompt=(TokenSegment([5, 6]),),
            params=SamplingParams(max_tokens=99),
            n=n,
        )
        self.cancelled = []
        self.stream = EventStream(
            [("r", i) for i in range(n)], lambda *key: self.cancelled.append(key)
        )
        self.metrics = Metrics()
        self.ticket = SimpleNamespace(start=lambda: None, close=lambda: None)
        wire = CompletionRequest(prompt="x", stream=stream)
        self.shape = shape(Head("id", 0, "m", "f"), wire, TOKENIZER)
        replica = SimpleNamespace(
            is_draining=False, admission=SimpleNamespace(retry_after=lambda: 17.0), seats=Seats()
        )
        model = SimpleNamespace(
            preparer=SimpleNamespace(tokenizer=TOKENIZER),
            client=SimpleNamespace(submit=lambda *requests: self.stream),
            request_metrics=RequestRecorder(self.metrics, "m", SystemClock()),
        )
        plan = Plan(
            requests=(request,),
            shape=self.shape,
            options=TextOptions(),
            is_stream=stream,
            is_peer=is_peer,
        )
        self.exchange = Exchange(replica, model, plan, self.ticket)
        self.sent = []
        for event in events:
            self.stream.push(event)

    async def run(self):
        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            self.sent.append(message)

        await self.exchange.run({}, receive, send)
        return self

    @property
    def text(self):
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def data(self):
        """The objects of the events before [DONE], which must be the last."""
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]
        assert lines.count("[DONE]") == 1
        assert lines[-1] == "[DONE]"
        assert self.text.endswith("data: [DONE]\n\n")
        assert self.sent[-1] == {"type": "http.response.body", "body": b""}
        return [json.loads(line) for line in lines[:-1]]

    def finishes(self):
        """(choice, finish reason) of every chunk that has one."""
        choices = [choice for item in self.data for choice in item.get("choices", ())]
        return [(c["index"], c["finish_reason"]) for c in choices if c["finish_reason"]]

    def errors(self):
        """Error objects; nothing but [DONE] comes after one."""
        found = [item["error"] for item in self.data if "error" in item]
        assert not found or "error" in self.data[-1]
        return found


def told(token_ids=(), index=0, **fields):
    return TokenEvent("r", index, tuple(token_ids), **fields)


@pytest.mark.parametrize("shape", [CompletionShape, ChatShape])
async def test_an_engine_error_ends_the_choice_and_then_the_stream(shape):
    dead = told(finish=ERROR, error="The engine died.", error_kind="EngineDeadError")
    talk = await Talk(told(HELLO), dead, shape=shape).run()
    assert talk.finishes() == [(0, "error")]
    assert [(e["code"], e["message"]) for e in talk.errors()] == [
        ("engine_died", "The engine died.")
    ]


async def test_a_choice_that_fails_does_not_keep_the_others_from_their_ends():
    bad = told(index=1, finish=ERROR, error="Row failed.", error_kind="InternalError")
    worse = told(index=2, finish=FinishReason.CANCELLED)
    rest = told(HELLO, finish=LENGTH)
    talk = await Talk(told(HELLO), bad, worse, rest, n=3).run()
    assert talk.finishes() == [(1, "error"), (2, "error"), (0, "length")]
    assert len(talk.errors()) == 1
    assert talk.errors()[0]["type"] == "server_error"


class BreakingAt:
    """A shape that raises from its nth call on, or at that one only."""

    telemetry = None

    def __init__(self, shape, at, *, for_ever):
        self._shape, self._left, self._for_ever = shape, at, for_ever

    def __getattr__(self, name):
        method = getattr(self._shape, name)

        def call(*args, **fields):
            self._left -= 1
            if self._left == 0 or (self._left < 0 and self._for_ever):
                raise ZeroDivisionError("a defect")
            return method(*args, **fields)

        return call


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("for_ever", [False, True])
async def test_a_defect_in_the_middle_of_a_stream_is_told(at, for_ever):
    talk = Talk(told(HELLO), told(HELLO, index=1), n=2)
    talk.exchange._plan = Plan(
        requests=talk.exchange._plan.requests,
        shape=BreakingAt(talk.shape, at, for_ever=for_ever),
        options=TextOptions(),
        is_stream=True,
        is_peer=False,
    )
    task = asyncio.create_task(talk.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for event in (told(HELLO), told(HELLO, index=1, finish=LENGTH), told(HELLO, finish=LENGTH)):
        talk.stream.push(event)
        await asyncio.sleep(0)
    try:
        await task
    except ZeroDivisionError:
        assert at == 2  # nothing had been sent yet: it is a status
        assert talk.sent == []
        return
    (error,) = talk.errors()
    assert error["type"] == "server_error"
    ends = [index for index, _ in talk.finishes()]
    assert len(ends) == len(set(ends))
    if not for_ever:
        assert sorted(ends) == [0, 1]
    assert talk.stream.is_finished


async def test_before_the_first_byte_an_error_is_a_status():
    bad = told(finish=ERROR, error="No.", error_kind="InternalError")
    for stream in (True, False):
        talk = Talk(bad, stream=stream)
        with pytest.raises(InternalError):
            await talk.run()
        assert talk.sent == []


async def test_who_waited_too_long_is_told_when_to_come_back():
    late = told(finish=ERROR, error="It waited.", error_kind="OverloadedError")
    with pytest.raises(OverloadedError) as caught:
        await Talk(late).run()
    assert caught.value.retry_after == 17.0


async def test_a_peer_gets_ids_when_they_come_and_text_when_it_can_be_shown():
    events = [told([number]) for number in SMILE]
    talk = await Talk(*events, told([*HELLO], finish=LENGTH), is_peer=True).run()
    blocks = talk.text.split("\n\n")
    comments = [block.split("\n")[0] for block in blocks if block.startswith(": headrace ")]
    ids = [json.loads(line.removeprefix(": headrace "))["token_ids"] for line in comments]
    assert ids == [[number] for number in SMILE] + [list(HELLO)]
    # The comments whose text is held back stand alone.
    assert [len(block.split("\n")) for block in blocks[: len(SMILE)]] == [1] * (len(SMILE) - 1) + [
        2
    ]
    assert "".join(c["choices"][0]["text"] for c in talk.data) == "😀hello"
    assert "headrace" not in (await Talk(*events, told(finish=LENGTH)).run()).text


async def test_usage_is_counted_only_for_those_who_see_it():
    talk = Talk(told(HELLO), told(HELLO, finish=LENGTH))
    talk.exchange._usage = lambda: pytest.fail("counted for nobody")
    assert (await talk.run()).finishes() == [(0, "length")]
