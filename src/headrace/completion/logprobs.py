"""Log-probabilities in the shapes of the two APIs."""

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.api.chat import ChatLogprob, ChatLogprobs, TopLogprob
from headrace.api.completions import CompletionLogprobs
from headrace.core.events import TokenLogprobs

#: JSON has no infinity; OpenAI reports a token that cannot be as -9999.
LOWEST: Final = -9999.0


def chat_logprobs(positions: Sequence[TokenLogprobs], table: Mapping[int, bytes]) -> ChatLogprobs:
    """The chosen token and the best ones at each position, with their exact bytes.

    `table` spells every token, special ones too.
    """
    return ChatLogprobs(
        content=[
            ChatLogprob(
                token=token_text(table[position.token_id]),
                logprob=_finite(position.logprob),
                bytes=list(table[position.token_id]),
                top_logprobs=[
                    TopLogprob(
                        token=token_text(table[token_id]),
                        logprob=_finite(logprob),
                        bytes=list(table[token_id]),
                    )
                    for token_id, logprob in position.top
                ],
            )
            for position in positions
        ]
    )


def completion_logprobs(
    positions: Sequence[TokenLogprobs], text_offsets: Sequence[int], table: Mapping[int, bytes]
) -> CompletionLogprobs:
    """Four lists of one length. The best tokens include the chosen one, so there may be one more.

    A token that is not whole characters is written `bytes:` and its bytes, so that different ones differ.
    """
    return CompletionLogprobs(
        tokens=[_name(table[position.token_id]) for position in positions],
        token_logprobs=[_finite(position.logprob) for position in positions],
        top_logprobs=[_best(position, table) for position in positions],
        text_offset=list(text_offsets),
    )


def token_text(spelt: bytes) -> str:
    r"""A token's text; the bytes as `\xe2\x80` where they are not whole characters."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in spelt)


def _name(spelt: bytes) -> str:
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return f"bytes:{token_text(spelt)}"


def _best(position: TokenLogprobs, table: Mapping[int, bytes]) -> dict[str, float]:
    best: dict[str, float] = {}
    for token_id, logprob in (*position.top, (position.token_id, position.logprob)):
        # Two tokens may be spelt alike; the likelier one, which comes first, stands for both.
        best.setdefault(_name(table[token_id]), _finite(logprob))
    return best


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
