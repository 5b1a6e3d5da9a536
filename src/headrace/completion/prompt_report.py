"""What an answer tells of its prompt: its tokens, their log-probabilities, its text."""

from collections.abc import Sequence

from msgspec import Struct

from headrace.completion.detokenizer import Detokenizer
from headrace.core.events import TokenLogprobs
from headrace.core.request import Request
from headrace.preprocess.tokenizer import Tokenizer


class PromptReport(Struct, frozen=True, kw_only=True):
    """A prompt as the model saw it."""

    token_ids: tuple[int, ...]
    text: str
    """Special tokens spelt out, but for the marks that the tokenizer puts around every text."""
    text_offsets: tuple[int, ...]
    """Characters of the text before each token."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of all tokens but the first, when they were asked for."""


def report_prompt(request: Request, tokenizer: Tokenizer) -> PromptReport:
    """Without log-probabilities. O(prompt)."""
    ids = request.prompt_token_ids
    facts = tokenizer.facts
    first = _common(ids, facts.prefix_ids)
    last = len(ids) - _common(ids[first:][::-1], tuple(reversed(facts.suffix_ids)))
    detokenizer = Detokenizer(tokenizer.all_bytes, strips_space=facts.strips_space)
    pieces: list[str] = []
    offsets: list[int] = []
    length = 0
    for place, token_id in enumerate(ids):
        offsets.append(length)
        if first <= place < last:
            pieces.append(detokenizer.push(token_id))
            length += len(pieces[-1])
    pieces.append(detokenizer.flush())
    return PromptReport(token_ids=tuple(ids), text="".join(pieces), text_offsets=tuple(offsets))


def _common(ids: Sequence[int], marks: Sequence[int]) -> int:
    """How many tokens the marks are, where the ids begin with them."""
    return len(marks) if marks and tuple(ids[: len(marks)]) == tuple(marks) else 0
