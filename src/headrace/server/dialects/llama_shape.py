"""Deltas → llama.cpp's answer of `/completion`, whole or as events."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.llama import (
    LlamaChunk,
    LlamaCompletion,
    LlamaLogprob,
    LlamaRequest,
    LlamaSettings,
    LlamaTopLogprob,
)
from headrace.api.usage import Usage
from headrace.completion.delta import Delta
from headrace.completion.logprobs import LOWEST, token_text
from headrace.core.clock import Clock
from headrace.core.events import FinishReason
from headrace.core.request import Request
from headrace.preprocess.tokenizer import Tokenizer
from headrace.server.dialects.llama_request import is_one_prompt
from headrace.server.shapes import Head, problem_chunk, timings_in
from headrace.server.telemetry import Report, Telemetry
from headrace.web.streaming import Framing, event

#: llama.cpp's own streams end without a marker.
FRAMING: Final = Framing(event=event, end=b"")


class LlamaShape:
    """Part of Shape. A choice's last event repeats nothing of its text."""

    framing = FRAMING

    def __init__(
        self,
        head: Head,
        wire: LlamaRequest,
        requests: Sequence[Request],
        tokenizer: Tokenizer,
        clock: Clock,
    ) -> None:
        self.telemetry = Telemetry(
            requests,
            clock,
            per_token=bool(wire.timings_per_token),
            has_progress=bool(wire.return_progress and wire.stream),
            write=self._progress,
        )
        self._head, self._wire, self._requests = head, wire, requests
        self._tokenizer = tokenizer
        self._encoder = msgspec.json.Encoder()
        self._num_tokens: dict[int, int] = {}
        self._has_new_line: set[int] = set()

    def chunks(
        self, choice: int, delta: Delta, *, is_first: bool, usage: Callable[[], Usage]
    ) -> list[bytes]:
        """Part of Shape."""
        num_tokens = self._num_tokens.get(choice, 0) + len(delta.token_ids)
        self._num_tokens[choice] = num_tokens
        if "\n" in delta.text:
            self._has_new_line.add(choice)
        made: list[bytes] = []
        if delta.text or delta.logprobs:
            chunk = LlamaChunk(
                index=choice,
                content=delta.text,
                tokens=list(delta.token_ids),
                tokens_predicted=num_tokens,
                tokens_evaluated=self._request(choice).num_prompt_tokens,
                completion_probabilities=self._logprobs(delta),
                timings=timings_in(self.telemetry, choice),
            )
            made.append(self._encoder.encode(chunk))
        if delta.finish is not None:
            has_new_line = choice in self._has_new_line
            end = Delta(index=0, finish=delta.finish, stop_reason=delta.stop_reason)
            last = self._completion(choice, end, num_tokens, has_new_line)
            made.append(self._encoder.encode(self._selected(last)))
        return made

    def last_chunk(self, usage: Callable[[], Usage]) -> bytes | None:
        """Part of Shape."""
        return None

    def failure(self, error: Exception, usage: Callable[[], Usage]) -> list[bytes]:
        """Part of Shape."""
        return [problem_chunk(error)]

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """Part of Shape."""
        made = [
            self._selected(self._completion(index, delta, len(delta.token_ids), "\n" in delta.text))
            for index, delta in enumerate(choices)
        ]
        is_one = is_one_prompt(self._wire.prompt) and len(made) == 1
        return self._encoder.encode(made[0] if is_one else made)

    def _progress(self, choice: int, report: Report) -> list[bytes]:
        chunk = LlamaChunk(
            index=choice,
            content="",
            tokens=[],
            tokens_predicted=0,
            tokens_evaluated=self._request(choice).num_prompt_tokens,
            timings=report.timings if self.telemetry.per_token else UNSET,
            prompt_progress=report.progress,
        )
        return [self._encoder.encode(chunk)]

    def _completion(
        self, choice: int, delta: Delta, num_tokens: int, has_new_line: bool
    ) -> LlamaCompletion:
        request = self._request(choice)
        kind, word = _stop(delta)
        return LlamaCompletion(
            index=choice,
            content=delta.text,
            tokens=list(delta.token_ids) if self._wire.return_tokens else [],
            model=self._head.model,
            tokens_predicted=num_tokens,
            tokens_evaluated=request.num_prompt_tokens,
            generation_settings=self._settings(request),
            prompt=self._tokenizer.decode(request.prompt_token_ids, skip_special=False),
            has_new_line=has_new_line,
            stop_type=kind,
            stopping_word=word,
            timings=self.telemetry.timings(choice),
            completion_probabilities=self._logprobs(delta),
        )

    def _request(self, choice: int) -> Request:
        return self._requests[choice // self._requests[0].n]

    def _settings(self, request: Request) -> LlamaSettings:
        params = request.params
        return LlamaSettings(
            n_predict=params.max_tokens,
            seed=params.seed,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repeat_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            n_probs=self._wire.n_probs or 0,
            stream=bool(self._wire.stream),
        )

    def _logprobs(self, delta: Delta) -> list[LlamaLogprob] | UnsetType:
        if not delta.logprobs:
            return UNSET
        table = self._tokenizer.all_bytes
        if self._wire.post_sampling_probs:
            return [
                LlamaLogprob(
                    **_likely(table, position.token_id, position.logprob),
                    top_probs=[
                        LlamaTopLogprob(**_likely(table, token_id, logprob))
                        for token_id, logprob in position.top
                        if math.exp(logprob) > 0.0
                    ],
                )
                for position in delta.logprobs
            ]
        return [
            LlamaLogprob(
                **_spelt(table, position.token_id, position.logprob),
                top_logprobs=[
                    LlamaTopLogprob(**_spelt(table, token_id, logprob))
                    for token_id, logprob in position.top
                ],
            )
            for position in delta.logprobs
        ]

    def _selected(self, answer: LlamaCompletion) -> LlamaCompletion | dict[str, Any]:
        """The whole object, or the fields that were asked for under their paths."""
        if not self._wire.response_fields:
            return answer
        tree = msgspec.to_builtins(answer)
        chosen: dict[str, Any] = {}
        for path in self._wire.response_fields:
            value: Any = tree
            for name in path.split("/"):
                value = value.get(name, UNSET) if isinstance(value, dict) else UNSET
            if value is not UNSET:
                chosen[path] = value
        return chosen


def _spelt(table: Mapping[int, bytes], token_id: int, logprob: float) -> dict[str, Any]:
    spelt = table[token_id]
    return {
        "id": token_id,
        "token": token_text(spelt),
        "bytes": list(spelt),
        "logprob": max(logprob, LOWEST),
    }


def _likely(table: Mapping[int, bytes], token_id: int, logprob: float) -> dict[str, Any]:
    told = _spelt(table, token_id, logprob)
    told["prob"] = math.exp(told.pop("logprob"))
    return told


def _stop(delta: Delta) -> tuple[Literal["none", "eos", "limit", "word"], str]:
    if delta.finish is FinishReason.STOP:
        if isinstance(delta.stop_reason, str):
            return "word", delta.stop_reason
        return "eos", ""
    if delta.finish in (FinishReason.LENGTH, FinishReason.TIMEOUT, FinishReason.SHUTDOWN):
        return "limit", ""
    return "none", ""
