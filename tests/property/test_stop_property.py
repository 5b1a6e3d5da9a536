"""Stop strings against the obvious definition, and responders against every chunking."""

from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.tiny_tokenizers import byte_level_tokenizer

from headrace.completion.choice import TextOptions
from headrace.completion.respond import Responder
from headrace.completion.stop import StopMatcher, Stops
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams

ALPHABET = st.sampled_from("ab\n😀")
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text(ALPHABET, max_size=6), max_size=12)
TOKENIZER = byte_level_tokenizer()
TEXT_IDS = sorted({n for text in ("hello world ab\n", "😀é") for n in TOKENIZER.encode(text)})


def obvious(stops, text):
    """(shown, stop): the first completed string, the longest of those that end at the same place."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def stream(stops, pieces, *, include_stop=False):
    matcher = StopMatcher(Stops(stops), include_stop=include_stop)
    shown = []
    for piece in pieces:
        passed = matcher.feed(piece)
        shown.append(passed.text)
        if passed.stop is not None:
            return shown, passed.stop
    return [*shown, matcher.flush()], None


@given(STOPS, PIECES)
@example(["aab", "ab"], ["a", "a", "ab"])
def test_a_stream_stops_where_the_whole_text_does(stops, pieces):
    shown, stop = stream(stops, pieces)
    assert ("".join(shown), stop) == obvious(stops, "".join(pieces))
    kept, same = stream(stops, pieces, include_stop=True)
    assert ("".join(kept), same) == ("".join(shown) + (stop or ""), stop)


@given(STOPS, PIECES)
def test_what_is_held_is_the_longest_suffix_that_may_become_a_stop(stops, pieces):
    matcher = StopMatcher(Stops(stops))
    fed = shown = ""
    for piece in pieces:
        passed = matcher.feed(piece)
        if passed.stop is not None:
            return
        fed, shown = fed + piece, shown + passed.text
        held = next(
            fed[start:]
            for start in range(len(fed) + 1)
            if any(stop.startswith(fed[start:]) for stop in [*stops, ""] if fed[start:] or not stop)
        )
        assert fed == shown + held


@st.composite
def answers(draw):
    ids = draw(st.lists(st.sampled_from([*TEXT_IDS, 0]), max_size=25))
    stops = draw(st.lists(st.sampled_from(["o", "wor", "ld ", "\n", "é", "😀", "ell"]), max_size=3))
    request = Request(
        request_id="r",
        prompt=(TokenSegment([5]),),
        params=SamplingParams(
            stop=tuple(stops),
            min_tokens=draw(st.integers(0, 4)),
            logprobs=draw(st.sampled_from([None, 0])),
        ),
    )
    return (
        request,
        ids,
        draw(st.sampled_from([(2, FinishReason.STOP), (None, FinishReason.LENGTH)])),
    )


def events(ids, sizes, end):
    """The answer as events of the given sizes; its end comes with the last or alone."""
    stop_id, finish = end
    ids = [*ids, stop_id] if stop_id is not None else ids
    place = 0
    for size in sizes:
        if place + size >= len(ids):
            break
        yield event(ids[place : place + size])
        place += size
    yield event(ids[place:], finish=finish, stop_token_id=stop_id)


def event(ids, **fields):
    logprobs = tuple(TokenLogprobs(number, -1.0, 1) for number in ids)
    return TokenEvent("r", 0, tuple(ids), logprobs, **fields)


def respond(request, all_events, **options):
    responder = Responder(request, TOKENIZER, TextOptions(**options), collect=True)
    deltas = [outcome.delta for outcome in map(responder.push, all_events) if outcome.delta]
    return responder, deltas


@given(answers(), st.lists(st.integers(0, 5), max_size=30), st.booleans())
def test_every_chunking_tells_the_same(answer, sizes, include_stop):
    request, ids, end = answer
    whole, _ = respond(request, events(ids, [], end), include_stop=include_stop)
    chunked, deltas = respond(request, events(ids, sizes, end), include_stop=include_stop)
    assert chunked.choices() == whole.choices()
    assert chunked.counts == whole.counts
    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert all(delta.text for delta in deltas[:-1])
    (choice,) = whole.choices()
    assert whole.counts.completion == len(choice.token_ids)
    if request.params.logprobs is not None:
        assert len(choice.logprobs) == len(choice.text_offsets) == len(choice.token_ids)


@given(answers(), st.integers(0, 25))
def test_another_replica_goes_on_where_the_first_one_stood(answer, cut):
    """The client has the text of the first replica's deltas; the second adds exactly the rest."""
    request, ids, end = answer
    whole, _ = respond(request, events(ids, [], end))
    _, before = respond(request, [event([number]) for number in ids[:cut]])
    if before and before[-1].finish is not None:
        return
    # What a gateway knows: the ids that came with the deltas.
    known = [number for delta in before for number in delta.token_ids]
    later = Request(
        request_id="r", prompt=request.prompt, params=request.params, prior_output_ids=known
    )
    second, after = respond(later, events(ids[len(known) :], [1] * 30, end))
    assert "".join(delta.text for delta in (*before, *after)) == whole.choices()[0].text
    assert second.counts == whole.counts
    assert after[-1].finish == whole.choices()[0].finish
