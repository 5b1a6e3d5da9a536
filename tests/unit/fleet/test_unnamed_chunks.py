"""Chunks without an id, as Azure sends them, on their way through.

Format: https://learn.microsoft.com/azure/ai-services/openai/concepts/content-streaming (asynchronous filter), with the prompt's
results first and those of the text in between.
"""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.gateway.progress import AnswerUsage, Progress
from headrace.fleet.gateway.relay import Relay

EMPTY = {"id": "", "object": "", "created": 0, "model": ""}
NAMED = {
    "id": "chatcmpl-7rCNs",
    "object": "chat.completion.chunk",
    "created": 1692912540,
    "model": "gpt",
}
PROMPT = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]  # fmt: skip
FOUND = {
    "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}},
    "content_filter_offsets": {"check_offset": 44, "start_offset": 44, "end_offset": 198},
}


def choice(delta, finish=None):
    return {"index": 0, "finish_reason": finish, "delta": delta}


CHUNKS = [
    {**EMPTY, "choices": [], "prompt_filter_results": PROMPT},
    {**NAMED, "choices": [choice({"role": "assistant", "content": ""})]},
    {**NAMED, "choices": [choice({"content": "Color"})]},
    {**EMPTY, "choices": [{"index": 0, "finish_reason": None, **FOUND}], "usage": None},
    {**NAMED, "choices": [choice({"content": " is"})]},
    {**NAMED, "choices": [choice({}, "stop")]},
    {**NAMED, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
]


def stream(chunks):
    return b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in chunks)


WIRE = stream(CHUNKS) + b"data: [DONE]\n\n"


def relay_of(progress=None, **options):
    given = {"ends": {"[DONE]"}, "drops_usage": False, "is_continuation": False, **options}
    return Relay(progress or Progress(), **given)


def read(events):
    lines = [line[6:] for line in events.decode().split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("drops_usage", [False, True])
@given(cuts=st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_all_chunks_have_one_name_and_nothing_is_lost(drops_usage, cuts):
    relay = relay_of(drops_usage=drops_usage)
    edges = [0, *sorted(cuts), len(WIRE)]
    out = b"".join(relay.feed(WIRE[a:b]) for a, b in itertools.pairwise(edges))
    relay.check()
    relay.check_end()
    told = read(out)
    assert {(chunk["id"], chunk["created"]) for chunk in told} == {(NAMED["id"], NAMED["created"])}
    assert all(chunk["choices"] or chunk.get("usage") for chunk in told)
    first, *rest = told
    assert first == {**CHUNKS[1], "prompt_filter_results": PROMPT}
    assert rest[1]["choices"][0]["content_filter_results"] == FOUND["content_filter_results"]
    assert len(told) == len(CHUNKS) - 1 - drops_usage
    assert relay.progress.name == {"id": NAMED["id"], "created": NAMED["created"]}
    assert relay.progress.usage == AnswerUsage(5, 0, 2)


def test_what_has_only_been_looked_at_is_no_beginning():
    relay = relay_of()
    assert relay.feed(stream(CHUNKS[:1])) == b""
    assert relay.progress.name is None
    assert relay.progress.num_tokens == 0


def test_another_replica_goes_on_under_the_same_name():
    progress = Progress(keeps_text=True)
    relay_of(progress).feed(stream(CHUNKS[:3]))
    other = {"id": "other", "created": 9, "object": "text", "model": "gpt"}
    out = relay_of(progress, is_continuation=True).feed(
        stream([CHUNKS[0], {**other, "choices": [choice({"content": " is"})]}])
    )
    (told,) = read(out)
    assert (told["id"], told["created"]) == (NAMED["id"], NAMED["created"])
    assert "prompt_filter_results" not in told


def test_a_server_without_any_id_is_passed_on():
    nameless = [{**EMPTY, "choices": [choice({"content": text})]} for text in "ab"]
    relay = relay_of()
    assert relay.feed(stream(nameless)) == stream(nameless)
    assert relay.progress.num_tokens == 2


def test_what_is_held_back_is_bounded():
    relay = relay_of()
    out = relay.feed(stream([{**EMPTY, "choices": [], f"x{n}": n} for n in range(100)]))
    assert len(read(out)) == 92
    assert len(relay._held) == 0
