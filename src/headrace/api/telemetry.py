"""What llama.cpp's clients are told of an answer's pace, beside or inside it."""

from msgspec import Struct


class Timings(Struct, frozen=True, kw_only=True):
    """Counts of tokens, and milliseconds. Never null: what has not happened yet is 0."""

    cache_n: int
    """Prompt tokens that came from the prefix cache."""
    prompt_n: int
    """Prompt tokens that were computed."""
    prompt_ms: float
    """From the first step with the prompt to the first token."""
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    """From the first token on: it came with the prompt."""
    predicted_per_token_ms: float
    predicted_per_second: float


class PromptProgress(Struct, frozen=True, kw_only=True):
    """How far a prompt has been computed."""

    total: int
    cache: int
    """Tokens that came from the prefix cache."""
    processed: int
    """Those among the `total` that are there, cached ones included."""
    time_ms: int
