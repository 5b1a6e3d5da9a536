"""Log-probabilities in the shapes of the two APIs."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from headrace.api.chat import ChatLogprob, ChatLogprobs, TopLogprob
from headrace.api.completions import CompletionLogprobs
from headrace.api.prompts import PromptLogprob, PromptLogprobs
from headrace.completion.prompt_report import PromptReport
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


def echoed_logprobs(
    prompt: PromptReport, own: CompletionLogprobs | None, num_top: int, table: Mapping[int, bytes]
) -> CompletionLogprobs:
    """The prompt's and then the answer's: nothing is known of the first token."""
    positions = trimmed(prompt.logprobs, num_top)
    first = prompt.token_ids[:1]
    of_prompt = completion_logprobs(positions, prompt.text_offsets[1:], table)
    return CompletionLogprobs(
        tokens=[*(_name(table[i]) for i in first), *of_prompt.tokens, *(own.tokens if own else ())],
        token_logprobs=[
            None,
            *of_prompt.token_logprobs,
            *(own.token_logprobs if own else ()),
        ],
        top_logprobs=[None, *of_prompt.top_logprobs, *(own.top_logprobs if own else ())],
        text_offset=[*prompt.text_offsets, *(own.text_offset if own else ())],
    )


def prompt_logprobs(
    prompt: PromptReport, num_top: int, table: Mapping[int, bytes]
) -> PromptLogprobs:
    """VLLM's form: by position, then by token id, the prompt's own token among the best."""
    told: PromptLogprobs = [None]
    for position in trimmed(prompt.logprobs, num_top):
        found = {
            str(token_id): PromptLogprob(
                logprob=_finite(logprob), rank=rank, decoded_token=token_text(table[token_id])
            )
            for rank, (token_id, logprob) in enumerate(position.top, start=1)
        }
        own = PromptLogprob(
            logprob=_finite(position.logprob),
            rank=position.rank,
            decoded_token=token_text(table[position.token_id]),
        )
        found.setdefault(str(position.token_id), own)
        told.append(found)
    return told


def trimmed(positions: Sequence[TokenLogprobs], num_top: int) -> Sequence[TokenLogprobs]:
    """With no more alternatives than these."""
    if all(len(position.top) <= num_top for position in positions):
        return positions
    return [replace(position, top=position.top[:num_top]) for position in positions]


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
