"""What answers tell of their prompt, as vLLM has it."""

from msgspec import Struct


class PromptLogprob(Struct, frozen=True, kw_only=True):
    """One token at one position of the prompt."""

    logprob: float
    rank: int
    """1 for the most likely token."""
    decoded_token: str


#: By token id: the prompt's own token and the best ones; null for the first position.
PromptLogprobs = list[dict[str, PromptLogprob] | None]
