"""Hugging Face's text-generation-inference: its OpenAI routes, or `/generate_stream` for completions.

Written from its OpenAPI description (version 2.4) and its list of metrics.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from headrace.config.fleet.replicas import Dialect, ReplicaApi, ReplicaSpec
from headrace.fleet.backends import reading
from headrace.fleet.backends.gauged import RUNNING, WAITING, GaugedBackend
from headrace.fleet.backends.prometheus import Aliases
from headrace.fleet.backends.prompts import PromptRequest, StopFinder, read_prompt
from headrace.fleet.backends.refusals import message_of, refusal, retry_after_of
from headrace.fleet.backends.telling import Teller, head_of, teller_for, usage_of
from headrace.fleet.backends.translating import SseReader
from headrace.fleet.backends.values import COMPLETIONS, AnswerReader, Incoming, Outgoing, Refusal

_TAKES: Final = ("seed", "top_k", "typical_p", "repetition_penalty", "frequency_penalty")
_ENDS: Final[Mapping[str, str]] = {
    "length": "length", "eos_token": "stop", "stop_sequence": "stop",
}  # fmt: skip
_STATUSES: Final[Mapping[str, int]] = {
    "overloaded": 429, "validation": 422, "generation": 424, "incomplete_generation": 500,
    "healthcheck": 503,
}  # fmt: skip


class TgiBackend(GaugedBackend):
    """It tells no KV usage. With `api: native`, completions go to its own route; chats always to OpenAI's, which has
    the template.
    """

    dialect: ClassVar = Dialect.TGI
    aliases: ClassVar[Aliases] = {
        RUNNING: ("tgi_batch_current_size",),
        WAITING: ("tgi_queue_size",),
    }

    def __init__(self, spec: ReplicaSpec) -> None:
        super().__init__(spec)
        self._is_native = spec.api is ReplicaApi.NATIVE

    def outgoing(self, call: Incoming) -> Outgoing:
        """A native completion is always read as a stream: only that tells how long the prompt was."""
        if not self._translates(call):
            return super().outgoing(call)
        body = msgspec.json.encode(_request(read_prompt(call, "tgi", _TAKES)))
        return Outgoing(path=self._base + "/generate_stream", body=body, headers=self._headers)

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """For native completions."""
        if not self._translates(call):
            return None
        request = read_prompt(call, "tgi", _TAKES)
        head = head_of(call, request.model, with_usage=request.with_usage)
        return TokenReader(teller_for(call, head), request.stop)

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """`{"error": text, "error_type": name}`; its OpenAI routes say the same."""
        value = reading.table(reading.decode(body))
        return refusal(status, message_of(value, body), retry_after=retry_after_of(headers))

    def _translates(self, call: Incoming) -> bool:
        return self._is_native and call.path == COMPLETIONS


def _request(request: PromptRequest) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "max_new_tokens": request.max_tokens,
        "details": True,
        "return_full_text": False,
    }
    temperature = request.number("temperature")
    if temperature is None:
        temperature = 1.0  # OpenAI's default; its own is to take the likeliest token
    settings["do_sample"] = temperature > 0
    if temperature > 0:
        settings["temperature"] = temperature
    for name in ("top_p", "typical_p"):  # it wants both between 0 and 1, without the ends
        value = request.number(name)
        if value is not None and 0 < value < 1:
            settings[name] = value
    top_k = request.number("top_k")
    if top_k is not None and top_k > 0:
        settings["top_k"] = top_k
    for name in ("repetition_penalty", "frequency_penalty", "seed"):
        value = request.number(name)
        if value is not None:
            settings[name] = value
    if request.stop:
        settings["stop"] = request.stop
    return {"inputs": request.prompt, "parameters": settings}


class TokenReader(SseReader):
    """One event a token; the last one has `generated_text` and `details`. Stop strings are in the text: they are cut."""

    def __init__(self, teller: Teller, stops: tuple[str, ...]) -> None:
        super().__init__(teller, is_stream=True)
        self._stop = StopFinder(stops)

    def _event(self, value: dict[str, Any]) -> bytes:
        if "error" in value:
            status = _STATUSES.get(reading.text(value.get("error_type")), 500)
            self.refusal = refusal(status, reading.text(value.get("error")))
            return b""
        token = reading.table(value.get("token"))
        piece = "" if token.get("special") is True else reading.text(token.get("text"))
        said = self._tell.text(0, self._stop.feed(piece))
        details = value.get("details")
        if not isinstance(details, dict):
            return said
        self.is_complete = True
        made = reading.count(details.get("generated_tokens"))
        prompt = reading.count(details.get("input_length"))
        if made is not None and prompt is not None:
            self.usage = usage_of(prompt, made)
        return b"".join((
            said,
            self._tell.text(0, self._stop.rest()),
            self._finish(0, reading.text(details.get("finish_reason")), _ENDS),
            self._tell.end(self.usage),
        ))  # fmt: skip
