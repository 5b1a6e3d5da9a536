import pytest
from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

from headrace.completion.choice import TextOptions
from headrace.completion.respond import Responder
from headrace.core.errors import EngineDeadError
from headrace.core.events import FinishReason, TokenEvent, TokenLogprobs
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams

TOKENIZER = byte_level_tokenizer()
EOS = 2
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def ids(text):
    return tuple(TOKENIZER.encode(text))


def request(*, n=1, prior=(), **params):
    return Request(
        request_id="r",
        prompt=(TokenSegment([5, 6, 7]),),
        params=SamplingParams(max_tokens=100, **params),
        eos_token_ids=(EOS,),
        n=n,
        prior_output_ids=list(prior),
    )


def responder(req=None, options=TextOptions(), *, tokenizer=TOKENIZER, **fields):  # noqa: B008
    return Responder(req or request(**fields), tokenizer, options, collect=True)


def event(token_ids=(), *, index=0, **fields):
    return TokenEvent("r", index, tuple(token_ids), **fields)


def test_text_comes_and_the_end_comes_once():
    answer = responder()
    first = answer.push(event(ids("hello")))
    assert (first.delta.text, first.delta.finish, first.cancel) == ("hello", None, False)
    last = answer.push(event([EOS], finish=STOP, stop_token_id=EOS))
    assert (last.delta.text, last.delta.finish, last.delta.stop_reason) == ("", STOP, None)
    assert answer.is_done
    assert answer.push(event(ids("more"))).delta is None
    assert answer.push(event(finish=LENGTH)).delta is None
    assert answer.fail(EngineDeadError("x")) == []
    (whole,) = answer.choices()
    assert (whole.text, whole.finish) == ("hello", STOP)
    assert whole.token_ids == (*ids("hello"), EOS)
    assert (answer.counts.prompt, answer.counts.completion) == (3, len(ids("hello")) + 1)


def test_half_a_character_waits():
    answer = responder()
    smile = ids("😀")
    outcomes = [answer.push(event([number])) for number in smile]
    assert [outcome.delta is None for outcome in outcomes] == [True] * (len(smile) - 1) + [False]
    # The ids that were held come with the text that they make.
    assert outcomes[-1].delta.token_ids == smile
    assert [outcome.token_ids for outcome in outcomes] == [(number,) for number in smile]
    assert outcomes[-1].delta.text == "😀"


def test_half_a_character_at_the_end_is_replaced():
    answer = responder()
    outcome = answer.push(event(ids("😀")[:1], finish=LENGTH))
    assert (outcome.delta.text, outcome.delta.finish) == ("\ufffd", LENGTH)


def test_a_stop_string_cuts_everything_at_its_token():
    answer = responder(stop=("ld",), logprobs=1)
    tokens = [*ids("hello"), *ids(" "), *ids("w"), *ids("ld"), *ids("ing")]
    logprobs = tuple(TokenLogprobs(number, -1.0, 1) for number in tokens)
    outcome = answer.push(event(tokens, logprobs=logprobs, num_cached_tokens=2))
    assert outcome.cancel
    delta = outcome.delta
    assert (delta.text, delta.finish, delta.stop_reason) == ("hello w", STOP, "ld")
    kept = len(tokens) - len(ids("ing"))
    assert delta.token_ids == outcome.token_ids == tuple(tokens[:kept])
    assert [entry.token_id for entry in delta.logprobs] == tokens[:kept]
    assert delta.text_offsets == (0, 5, 6, 7)
    assert (answer.counts.completion, answer.counts.cached) == (kept, 2)


def test_a_stop_string_over_several_events_never_leaks():
    answer = responder(stop=("world",))
    shown = []
    for text in ("hello", " ", "w", "or", "ld", " more"):
        outcome = answer.push(event(ids(text)))
        shown.append(outcome.delta.text if outcome.delta else None)
    assert shown == ["hello", " ", None, None, "", None]
    assert answer.choices()[0].text == "hello "


def test_a_false_alarm_is_shown():
    answer = responder(stop=("world",))
    assert answer.push(event(ids("wor"))).delta is None
    assert answer.push(event(ids("x"))).delta.text == "worx"
    answer.push(event(ids("wo")))
    end = answer.push(event([EOS], finish=STOP, stop_token_id=EOS))
    assert (end.delta.text, end.delta.stop_reason) == ("wo", None)


def test_the_stop_string_can_stay():
    answer = responder(options=TextOptions(include_stop=True), stop=("wor",))
    assert answer.push(event(ids("world"))).delta.text == "wor"


def test_an_end_of_the_engine_s_in_the_same_event_needs_no_cancel():
    answer = responder(stop=("ld",))
    outcome = answer.push(event(ids("world"), finish=LENGTH))
    assert (outcome.delta.finish, outcome.delta.stop_reason, outcome.cancel) == (STOP, "ld", False)


def test_a_requested_stop_token_is_counted_and_not_shown():
    stop_id = ids("hello")[0]
    answer = responder(stop_token_ids=(stop_id,))
    outcome = answer.push(event([*ids("in"), stop_id], finish=STOP, stop_token_id=stop_id))
    assert (outcome.delta.text, outcome.delta.stop_reason) == ("in", stop_id)
    assert outcome.delta.token_ids == (*ids("in"), stop_id)


def test_stop_strings_wait_for_min_tokens():
    answer = responder(stop=("w",), min_tokens=3)
    for _ in range(3):
        assert answer.push(event(ids("w"))).delta.text == "w"
    assert answer.push(event(ids("w"))).delta.finish is STOP
    assert answer.counts.completion == 4


def test_choices_are_independent():
    answer = responder(n=2, stop=("x",))
    answer.push(event(ids("hello"), index=1))
    assert answer.push(event(ids("x"), index=0)).cancel
    assert not answer.is_done
    answer.push(event(ids("in"), index=1, finish=LENGTH))
    assert answer.is_done
    assert [choice.text for choice in answer.choices()] == ["", "helloin"]
    assert answer.counts.completion == 1 + len(ids("hello")) + len(ids("in"))
    assert answer.push(event(ids("a"), index=7)).delta is None


def test_failure_ends_what_still_runs():
    answer = responder(n=2)
    answer.push(event(ids("hello"), index=0, finish=LENGTH))
    answer.push(event(ids("😀")[:1], index=1))
    (delta,) = answer.fail(EngineDeadError("The engine ended."))
    assert (delta.index, delta.finish, delta.text) == (1, FinishReason.ERROR, "\ufffd")
    assert (delta.error, delta.error_kind) == ("The engine ended.", "EngineDeadError")
    assert answer.is_done


@pytest.mark.parametrize("finish", list(FinishReason))
def test_every_end_arrives(finish):
    answer = responder(stop=("zz",))
    answer.push(event(ids("z")))
    outcome = answer.push(event(finish=finish, error="e", error_kind="InternalError"))
    assert (outcome.delta.finish, outcome.delta.text, outcome.cancel) == (finish, "z", False)
    assert (outcome.delta.error, outcome.delta.error_kind) == ("e", "InternalError")


@pytest.mark.parametrize("logprobs", [None, 0])
def test_special_tokens_are_shown_if_asked_for(logprobs):
    tokens = [*ids("in"), 0]
    hidden = responder(logprobs=logprobs)
    shown = responder(options=TextOptions(skip_special=False), logprobs=logprobs)
    for answer in (hidden, shown):
        answer.push(event(tokens))
        answer.push(event([EOS], finish=STOP, stop_token_id=EOS))
    assert hidden.choices()[0].text == "in"
    assert shown.choices()[0].text == "in<|endoftext|>"


def test_a_space_of_the_tokenizer_s_own_is_dropped_for_answers_that_stand_alone():
    tokenizer = sentencepiece_tokenizer()
    tokens = tokenizer.encode("hello world", add_special=False)
    for options, text in [
        (TextOptions(strips_space=True), "hello world"),
        (TextOptions(), " hello world"),
    ]:
        answer = responder(options=options, tokenizer=tokenizer)
        assert answer.push(event(tokens)).delta.text == text
    plain = responder(options=TextOptions(strips_space=True))
    assert plain.push(event(ids(" hello"))).delta.text == " hello"


def test_a_stop_string_within_prior_output_ends_at_once():
    answer = responder(prior=ids("hello"), stop=("ll",))
    outcome = answer.push(event(ids("a")))
    assert (outcome.delta.text, outcome.delta.finish, outcome.cancel) == ("", STOP, True)


def test_choices_need_collecting():
    answer = Responder(request(), TOKENIZER)
    with pytest.raises(ValueError, match="collect"):
        answer.choices()


def scored(*logprobs):
    return tuple(TokenLogprobs(5, logprob, 1) for logprob in logprobs)


def test_the_best_choices_are_those_of_the_largest_mean():
    answer = responder(options=TextOptions(num_best=2), n=4, logprobs=0)
    said = {0: (-3.0,), 1: (-1.0, -1.0, -4.0), 2: (-0.5,), 3: (-2.0, -2.0)}
    for index, logprobs in said.items():
        made = [5 + index] * len(logprobs)
        answer.push(event(made, index=index, logprobs=scored(*logprobs), finish=LENGTH))
    best = answer.choices()
    assert [choice.token_ids[0] for choice in best] == [5 + 2, 5 + 1]  # 1 and 3 are equal
    assert [choice.index for choice in best] == [0, 1]
    assert answer.counts.completion == 7


def test_the_prompt_is_told_once_a_choice_with_its_first_token():
    answer = responder(options=TextOptions(tells_prompt=True), n=2, prompt_logprobs=0)
    assert answer.push(event(prompt_logprobs=scored(-1.0))).delta is None
    first = answer.push(event(ids("\N{GRINNING FACE}")[:1], prompt_logprobs=scored(-2.0)))
    assert first.delta.text == ""
    assert first.delta.prompt.token_ids == (5, 6, 7)
    assert [entry.logprob for entry in first.delta.prompt.logprobs] == [-1.0, -2.0]
    assert answer.push(event(ids("ab"))).delta.prompt is None
    assert answer.push(event(ids("ab"), index=1)).delta.prompt == first.delta.prompt
