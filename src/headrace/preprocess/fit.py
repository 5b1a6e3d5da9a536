"""Makes prompts fit: the model's own marks in front, room for an answer behind, and no more than is wanted."""

from headrace.config.server import LongPrompt, ServerConfig
from headrace.core.errors import BadRequestError, PromptTooLongError
from headrace.core.model_info import ModelInfo
from headrace.preprocess.tokenizer import Tokenizer

#: Tokens at the beginning of a shortened text that may differ from those of the whole one.
_MARGIN = 256


class PromptFitter:
    """For one model. Immutable."""

    def __init__(self, tokenizer: Tokenizer, info: ModelInfo, config: ServerConfig) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._config = config

    def shorten(self, name: str, text: str, mark: str = "", *, truncate: int | None = None) -> str:
        """A text that is worth tokenising: the end of one that is too long for certain, or an error.

        The end still has more tokens than fit, and enough before those that its beginning, where it is cut
        otherwise than the whole text would be, does not matter.
        """
        context, must_fit = self._info.max_context, self._must_fit(truncate)
        limit = context - 1 if must_fit else context + _MARGIN

        def is_too_long(part: str) -> bool:
            # Marks are dropped before there are tokens.
            return self._tokenizer.is_longer(part.replace(mark, "") if mark else part, limit)

        if not is_too_long(text):
            return text
        if must_fit:
            raise PromptTooLongError(context, context, param=name, is_least=True)
        size = limit
        while size < len(text) and not is_too_long(text[-size:]):
            size *= 2
        return text[-size:]

    def with_prefix(self, ids: list[int]) -> list[int]:
        """The model's own marks in front, unless the text brought them along: never two of them."""
        prefix = [*self._tokenizer.facts.prefix_ids]
        return ids if ids[: len(prefix)] == prefix else prefix + ids

    def fit(
        self, name: str, ids: list[int], max_tokens: int | None, truncate: int | None = None
    ) -> list[int]:
        """A prompt that leaves room for at least one token.

        Cut at its start to `truncate` tokens (-1: to what fits), or to what fits if the operator wants.
        """
        context, vocab_size = self._info.max_context, self._info.vocab_size
        if not ids:
            raise BadRequestError(f"'{name}' is empty.", param=name)
        # Tokenizers of fine-tuned models may know more tokens than the model has embeddings for.
        if max(ids) >= vocab_size:
            raise BadRequestError(
                f"'{name}' holds a token of the tokenizer (id {max(ids)}) that the model, which has "
                f"{vocab_size} tokens, does not know.",
                param=name,
            )
        if truncate is not None and truncate > 0:
            ids = self._cut(name, ids, self._wanted(truncate))
        if len(ids) < context:
            return ids
        if self._must_fit(truncate):
            raise PromptTooLongError(len(ids), context, param=name)
        # A quarter of the context is kept for the answer, or less if less was asked for.
        reserve = max(1, min(max_tokens or self._config.default_max_tokens, context // 4))
        return self._cut(name, ids, context - reserve)

    def _cut(self, name: str, ids: list[int], count: int) -> list[int]:
        """The last tokens, and in front the model's own marks where they were."""
        if len(ids) <= count:
            return ids
        prefix = [*self._tokenizer.facts.prefix_ids]
        head = prefix if ids[: len(prefix)] == prefix else []
        keep = count - len(head)
        if keep < 1:
            raise PromptTooLongError(len(ids), self._info.max_context, param=name)
        return head + ids[-keep:]

    def _wanted(self, truncate: int) -> int:
        if truncate >= self._info.max_context:
            raise BadRequestError(
                f"'truncate_prompt_tokens': must be less than the context of "
                f"{self._info.max_context} tokens, not {truncate}.",
                param="truncate_prompt_tokens",
            )
        return truncate

    def _must_fit(self, truncate: int | None) -> bool:
        return truncate is None and self._config.long_prompt is LongPrompt.REJECT
