"""How many alternatives a request wants to hear of."""

from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.core.errors import BadRequestError


def chat_logprobs(request: ChatRequest) -> int | None:
    """Alternatives that a conversation asks for; None: no log-probabilities. Raises BadRequestError."""
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise BadRequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None


def completion_logprobs(request: CompletionRequest) -> int | None:
    """The same of a text."""
    if request.logprobs is None and request.best_of is not None:
        return 0  # they rank the answers
    return request.logprobs


def echoed_logprobs(request: CompletionRequest) -> int | None:
    """Those of the prompt that is echoed."""
    return request.logprobs if request.echo else None


def larger(first: int | None, second: int | None) -> int | None:
    """What is enough for both."""
    return max((count for count in (first, second) if count is not None), default=None)
