from tests.support.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

from headrace.completion.prompt_report import report_prompt
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams


def report(tokenizer, ids):
    segments = (TokenSegment(ids[:2]), TokenSegment(ids[2:]))
    return report_prompt(
        Request(request_id="r", prompt=segments, params=SamplingParams()), tokenizer
    )


def test_the_text_and_where_each_token_begins():
    tokenizer = byte_level_tokenizer()
    text = "hello wörld 😀!"
    ids = tokenizer.encode(text)
    told = report(tokenizer, ids)
    assert told.text == text
    assert told.token_ids == tuple(ids)
    assert list(told.text_offsets) == sorted(told.text_offsets)
    for place, offset in enumerate(told.text_offsets):
        assert offset == len(tokenizer.decode(ids[:place], skip_special=False).rstrip("\ufffd"))


def test_the_marks_around_every_text_are_not_shown():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode("hello world")
    assert ids[0] in tokenizer.facts.prefix_ids
    told = report(tokenizer, ids)
    assert told.text == "hello world"
    assert told.text_offsets[:2] == (0, 0)


def test_half_a_character_at_the_end_is_replaced():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("a😀")
    assert report(tokenizer, ids[:-1]).text == "a\ufffd"
