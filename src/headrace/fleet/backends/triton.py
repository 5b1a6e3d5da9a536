"""Triton Inference Server (KServe v2) by its generate extension: completions only, for it has no chat template.

Written from triton-inference-server/server, docs/protocol/extension_generate.md, and the KServe v2 health and repository
routes. Settings stand beside `text_input`: Triton hands them on as tensors or parameters, as the model declares them, so
both the TensorRT-LLM and the vLLM backend find theirs. It tells neither usage nor why a text ended; stop strings are found
here. Its metrics are on another port, so it tells no load.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec

from headrace.config.fleet.replicas import Dialect
from headrace.core.errors import BadRequestError
from headrace.fleet.backends import reading
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.prompts import PromptRequest, StopFinder, read_prompt
from headrace.fleet.backends.refusals import message_of, refusal, retry_after_of
from headrace.fleet.backends.telling import Teller, head_of, teller_for
from headrace.fleet.backends.translating import SseReader
from headrace.fleet.backends.values import (
    COMPLETIONS,
    AnswerReader,
    Incoming,
    ModelCard,
    Outgoing,
    Refusal,
)
from headrace.fleet.sse import StreamError

_NUMBERS: Final = (
    "temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_TAKES: Final = (*_NUMBERS, "seed")


class TritonBackend(OpenAIBackend):
    """A model that is not READY in the repository is none."""

    dialect: ClassVar[Dialect] = Dialect.TRITON
    health_path: ClassVar[str | None] = "/v2/health/ready"
    models_path: ClassVar[str | None] = "/v2/repository/index"

    def models_probe(self) -> Outgoing | None:
        """It is asked by POST."""
        path = self._base + "/v2/repository/index"
        return Outgoing(path=path, body=b"{}", headers=self._headers)

    def read_models(self, status: int, body: bytes) -> tuple[ModelCard, ...]:
        """`[{"name", "version", "state", "reason"}]`."""
        if status >= 300:
            return ()
        names = (
            reading.text(card.get("name"))
            for card in reading.tables(reading.decode(body))
            if card.get("state", "READY") == "READY"
        )
        return tuple(ModelCard(id=name) for name in dict.fromkeys(names) if name)

    def outgoing(self, call: Incoming) -> Outgoing:
        """A completion as `generate` or `generate_stream`. Raises BadRequestError."""
        request = read_prompt(call, "triton", _TAKES)
        if not request.model:
            raise BadRequestError("'model' is required.", param="model")
        verb = "generate_stream" if call.is_stream else "generate"
        return Outgoing(
            path=f"{self._base}/v2/models/{quote(request.model, safe='')}/{verb}",
            body=msgspec.json.encode(_request(request, call.is_stream)),
            headers=self._headers,
        )

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """Objects with `text_output`."""
        if call.path != COMPLETIONS:
            return None
        request = read_prompt(call, "triton", _TAKES)
        head = head_of(call, request.model, with_usage=request.with_usage)
        return OutputReader(teller_for(call, head), request.stop, is_stream=call.is_stream)

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """`{"error": text}`."""
        value = reading.table(reading.decode(body))
        return refusal(status, message_of(value, body), retry_after=retry_after_of(headers))


def _request(request: PromptRequest, is_stream: bool) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "text_input": request.prompt,
        "max_tokens": request.max_tokens,
        "stream": is_stream,
        "exclude_input_in_output": True,
    }
    for name in _NUMBERS:
        value = request.number(name)
        if value is not None:
            sent[name] = value
    seed = request.number("seed")
    if seed is not None:
        # TensorRT-LLM's name and vLLM's.
        sent["random_seed"] = sent["seed"] = seed
    return sent


class OutputReader(SseReader):
    """A stream ends with its body; an error may stand in it, with the status 200."""

    def __init__(self, teller: Teller, stops: tuple[str, ...], *, is_stream: bool) -> None:
        super().__init__(teller, is_stream=is_stream)
        self._stop = StopFinder(stops)
        self._has_begun = False

    def _whole(self, value: dict[str, Any]) -> bytes:
        return self._event(value) + self._closed()

    def _event(self, value: dict[str, Any]) -> bytes:
        if "error" in value:
            self.refusal = refusal(500, reading.text(value.get("error")))
            return b""
        if "text_output" not in value:
            return b""
        self._has_begun = True
        output = value["text_output"]
        # A batch of one comes as a list from some models.
        piece = output[0] if isinstance(output, list) and output else output
        if not isinstance(piece, str):
            raise StreamError("'text_output' is no text.")
        said = self._tell.text(0, self._stop.feed(piece))
        # The server does not know our stop strings, and would go on to its bound.
        self.is_cut = self._stop.has_stopped
        return said

    def _closed(self) -> bytes:
        is_over = self.is_cut or self._parser.is_idle
        if self.refusal is not None or not self._has_begun or not is_over:
            return b""
        self.is_complete = True
        rest = self._tell.text(0, self._stop.rest())
        return rest + self._tell.finish(0, "stop") + self._tell.end(None)
