"""The request that goes on with an answer that broke off.

By tokens: headrace's `prior_output_ids` with the resolved seed. By text: a chat gets its answer so far as a last
message of the assistant that the template leaves open (`continue_final_message`, as vLLM and SGLang name it; llama.cpp
leaves a last assistant message open by itself), a completion gets it behind its prompt. What has been made comes off the
token bounds.
"""

from typing import Any, Final

import msgspec

from headrace.fleet.backends import reading
from headrace.fleet.backends.values import CHAT, COMPLETIONS, Continuation, Incoming, ResumePoint

#: With one of these an answer is more than its text, or its text is held to a form from its beginning: by text it
#: cannot be gone on with.
_HINDRANCES: Final = (
    "logprobs", "top_logprobs", "prompt_logprobs", "response_format", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "structured_outputs", "json_schema", "grammar", "regex", "ebnf",
    "structural_tag", "best_of", "use_beam_search", "return_token_ids", "echo", "suffix", "prompt_embeds",
    "audio", "functions",
)  # fmt: skip
_BOUNDS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")


def resumed(
    call: Incoming, progress: ResumePoint, *, chat: Continuation, completions: Continuation
) -> Incoming | None:
    """The call that goes on; None where that cannot be done, or nothing is left to be made."""
    way = {CHAT: chat, COMPLETIONS: completions}.get(call.path, Continuation.NONE)
    body = reading.decode(call.body)
    if way is Continuation.NONE or not isinstance(body, dict) or not _has_one_choice(body):
        return None
    if not progress.num_tokens and not progress.text and not progress.token_ids:
        return call
    if way is Continuation.TOKENS and progress.token_ids is not None:
        return _with_body(call, _by_tokens(body, progress))
    # Without ids it can be gone on with by text like others.
    if not progress.is_plain or any(body.get(name) for name in _HINDRANCES):
        return None
    if isinstance(body.get("logprobs"), int) and not isinstance(body.get("logprobs"), bool):
        return None
    if not _lower_bounds(body, progress.num_tokens):
        return None
    going_on = _chat_by_text(body, progress) if call.path == CHAT else _prompt(body, progress)
    return _with_body(call, going_on) if going_on is not None else None


def _has_one_choice(body: dict[str, Any]) -> bool:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        return False  # several prompts
    return (body.get("n") or 1) == 1


def _by_tokens(body: dict[str, Any], progress: ResumePoint) -> dict[str, Any]:
    # Bounds stay: ids of before count as output there.
    prior = [*reading.items(body.get("prior_output_ids")), *(progress.token_ids or ())]
    resolved = {} if progress.seed is None else {"seed": progress.seed}
    return {**body, **resolved, "prior_output_ids": prior}


def _lower_bounds(body: dict[str, Any], made: int) -> bool:
    for name in _BOUNDS:
        bound = reading.count(body.get(name))
        if bound is None:
            continue
        if name != "min_tokens" and bound <= made:
            return False
        body[name] = max(0, bound - made)
    return True


def _chat_by_text(body: dict[str, Any], progress: ResumePoint) -> dict[str, Any] | None:
    messages = reading.items(body.get("messages"))
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return None
    last = reading.table(messages[-1]) if messages else {}
    text = progress.text
    if last.get("role") == "assistant" and body.get("continue_final_message"):
        # The client itself went on with a message: it gets longer.
        if not isinstance(last.get("content"), str):
            return None
        messages, text = messages[:-1], last["content"] + text
    return {
        **body,
        "messages": [*messages, {"role": "assistant", "content": text}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


def _prompt(body: dict[str, Any], progress: ResumePoint) -> dict[str, Any] | None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        return None  # token ids: text cannot be put behind them without the tokenizer
    return {**body, "prompt": prompt + progress.text}


def _with_body(call: Incoming, body: dict[str, Any]) -> Incoming:
    return msgspec.structs.replace(call, body=msgspec.json.encode(body))
