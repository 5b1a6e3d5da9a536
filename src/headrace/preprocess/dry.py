"""The penalty for repetition (DRY): wire fields → `core.sampling.Dry`."""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from headrace.api.fields import MAX_BREAKER_CHARS, MAX_BREAKERS, GenerationFields
from headrace.core.errors import BadRequestError
from headrace.core.sampling import Dry, SamplingParams
from headrace.preprocess.tokenizer import Tokenizer

#: llama.cpp's defaults.
DEFAULT_BASE: Final = 1.75
DEFAULT_ALLOWED_LENGTH: Final = 2
DEFAULT_BREAKERS: Final = ("\n", ":", '"', "*")
#: More than any context has.
_ALL: Final = 2**31 - 1
#: Tokens that break on their own: they travel with the request.
_MAX_BREAKER_TOKENS: Final = 65_536
#: What may precede a breaker and change how it is spelt: nothing, a word, a space.
_BEFORE: Final = ("", "a", " ")


def with_dry(
    params: SamplingParams, fields: GenerationFields, tokenizer: Tokenizer, vocab_size: int
) -> SamplingParams:
    """The parameters with the penalty, if one is asked for. Raises BadRequestError that names the field."""
    multiplier = _number("dry_multiplier", fields.dry_multiplier, 0.0)
    base = _number("dry_base", fields.dry_base, DEFAULT_BASE)
    allowed = fields.dry_allowed_length
    allowed = DEFAULT_ALLOWED_LENGTH if allowed is None else allowed
    if not 1 <= allowed <= _ALL:
        raise _fault("dry_allowed_length", f"must be at least 1, not {allowed}")
    last = -1 if fields.dry_penalty_last_n is None else fields.dry_penalty_last_n
    if not -1 <= last <= _ALL:
        raise _fault("dry_penalty_last_n", f"must be at least 0, or -1 for all tokens, not {last}")
    breakers = fields.dry_sequence_breakers
    _check_breakers(breakers or ())
    if multiplier == 0.0 or last == 0:
        return params
    texts = DEFAULT_BREAKERS if breakers is None else tuple(dict.fromkeys(breakers))
    dry = Dry(
        multiplier=multiplier,
        base=base if base >= 1.0 else DEFAULT_BASE,
        allowed_length=allowed,
        window=_ALL if last == -1 else last,
        breakers=_tokens_with(texts, tokenizer, vocab_size),
        breaker_words=_words(texts, tokenizer),
    )
    return structs.replace(params, dry=dry)


def _check_breakers(breakers: Sequence[str]) -> None:
    name = "dry_sequence_breakers"
    if len(breakers) > MAX_BREAKERS:
        raise _fault(name, f"has {len(breakers)} texts; at most {MAX_BREAKERS} are taken")
    for place, text in enumerate(breakers):
        if not 1 <= len(text) <= MAX_BREAKER_CHARS:
            raise _fault(f"{name}[{place}]", f"must have 1 to {MAX_BREAKER_CHARS} characters")


def _tokens_with(texts: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """The tokens that hold one of the texts."""
    found: set[int] = set()
    for place, text in enumerate(texts):
        found.update(tokenizer.tokens_with(text))
        if len(found) > _MAX_BREAKER_TOKENS:
            raise _fault(
                f"dry_sequence_breakers[{place}]",
                f"is part of too many tokens: breakers may concern {_MAX_BREAKER_TOKENS} in all",
            )
    return tuple(sorted(token_id for token_id in found if token_id < vocab_size))


def _words(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The texts as several tokens, in the spellings that they have behind different texts."""
    spelt: dict[tuple[int, ...], None] = {}
    for text in texts:
        for before in _BEFORE:
            skipped = len(tokenizer.encode(before, add_special=False)) if before == "a" else 0
            ids = tuple(tokenizer.encode(before + text, add_special=False)[skipped:])
            # The word before may have grown together with the text.
            is_text = tokenizer.decode(ids, skip_special=False).lstrip() == text.lstrip()
            if len(ids) > 1 and is_text:
                spelt[ids] = None
    return tuple(spelt)


def _number(name: str, given: float | None, default: float) -> float:
    value = default if given is None else given
    # Not "value < 0": NaN must not pass.
    if not 0.0 <= value <= 100.0:
        raise _fault(name, f"must be between 0 and 100, not {value:g}")
    return float(value)


def _fault(name: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{name}': {what}.", param=name)
