"""Which tokens a request does not want: wire fields → token ids."""

from typing import Final

from msgspec import structs

from headrace.api.fields import MAX_ALLOWED, MAX_BAD_WORDS, MAX_STOP_CHARS, GenerationFields
from headrace.core.errors import BadRequestError
from headrace.core.sampling import SamplingParams
from headrace.preprocess.params import check_token_ids
from headrace.preprocess.tokenizer import Tokenizer

#: Tokens of one word: a bound on what each step compares.
_MAX_WORD_TOKENS: Final = 256


def with_token_bounds(
    params: SamplingParams, fields: GenerationFields, tokenizer: Tokenizer, vocab_size: int
) -> SamplingParams:
    """The parameters with `allowed_token_ids` and `bad_words`. Raises BadRequestError."""
    allowed, words = fields.allowed_token_ids, fields.bad_words
    if allowed is None and not words:
        return params
    if allowed is not None:
        if not 1 <= len(allowed) <= MAX_ALLOWED:
            raise _fault("allowed_token_ids", f"takes 1 to {MAX_ALLOWED} ids, not {len(allowed)}")
        check_token_ids("allowed_token_ids", allowed, vocab_size)
    return structs.replace(
        params,
        allowed_token_ids=tuple(dict.fromkeys(allowed or ())),
        bad_words=_spell(words or [], tokenizer, vocab_size),
    )


def _spell(
    words: str | list[str], tokenizer: Tokenizer, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Each word as tokens, at the beginning of a text and behind a space (as vLLM does)."""
    if isinstance(words, str):
        words = [words]
    if len(words) > MAX_BAD_WORDS:
        raise _fault("bad_words", f"has {len(words)} words; at most {MAX_BAD_WORDS} are taken")
    spelt: dict[tuple[int, ...], None] = {}
    for place, word in enumerate(words):
        name = f"bad_words[{place}]"
        if not word.strip() or len(word) > MAX_STOP_CHARS:
            raise _fault(name, f"must have 1 to {MAX_STOP_CHARS} characters that are no space")
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tuple(tokenizer.encode(text, add_special=False))
            if len(ids) > _MAX_WORD_TOKENS:
                raise _fault(name, f"takes more than {_MAX_WORD_TOKENS} tokens")
            if ids and max(ids) < vocab_size:
                spelt[ids] = None
    return tuple(spelt)


def _fault(name: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{name}': {what}.", param=name)
