"""What a request cost, counted in tokens."""

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    """Where the prompt tokens came from."""

    cached_tokens: int = 0
    """Those that came from the prefix cache."""


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    """What the completion tokens were spent on."""

    reasoning_tokens: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """Counts of token ids, never of text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Where the model reasoned."""
