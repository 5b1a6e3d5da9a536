"""Google's Gemini: Vertex AI and the Gemini API, by generateContent, or by their OpenAI-compatible route.

Written from the references of both (cloud.google.com/vertex-ai, ai.google.dev/api/generate-content). The address decides which:
`https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION`, or
`https://generativelanguage.googleapis.com/v1beta`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

import msgspec

from headrace.config.fleet.replicas import Dialect, ReplicaApi, ReplicaSpec
from headrace.core.errors import BadRequestError
from headrace.fleet.backends import reading
from headrace.fleet.backends.chats import ChatRequest, Image, Turn, read_chat
from headrace.fleet.backends.gemini import CandidateReader
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.refusals import message_of, refusal, retry_after_of
from headrace.fleet.backends.telling import head_of, teller_for
from headrace.fleet.backends.values import (
    CHAT,
    AnswerReader,
    Continuation,
    Incoming,
    ModelCard,
    Outgoing,
    Refusal,
)

_TAKES: Final = (
    "top_k", "n", "seed", "presence_penalty", "frequency_penalty", "response_format",
)  # fmt: skip
_NUMBERS: Final[Mapping[str, str]] = {
    "temperature": "temperature", "top_p": "topP", "top_k": "topK", "n": "candidateCount", "seed": "seed",
    "presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty",
}  # fmt: skip


class VertexBackend(OpenAIBackend):
    """Only chats. The Gemini API lists its models, Vertex does not; there is no health and no load."""

    dialect: ClassVar[Dialect] = Dialect.VERTEX
    completions = Continuation.NONE

    def __init__(self, spec: ReplicaSpec) -> None:
        super().__init__(spec)
        # Here the version is part of every path.
        self._base = urlsplit(spec.url).path.rstrip("/")
        self._is_openai = spec.api is ReplicaApi.OPENAI

    def _auth(self, spec: ReplicaSpec) -> dict[str, str]:
        self._is_project = "/projects/" in spec.url
        if spec.api_key and not self._is_project and spec.api is not ReplicaApi.OPENAI:
            return {"x-goog-api-key": str(spec.api_key)}
        return super()._auth(spec)

    def models_probe(self) -> Outgoing | None:
        return None if self._is_project or self._is_openai else self._probe("/models")

    def read_models(self, status: int, body: bytes) -> tuple[ModelCard, ...]:
        """`{"models": [{"name": "models/…", "inputTokenLimit": n}]}`."""
        if status >= 300:
            return ()
        return tuple(
            ModelCard(
                id=reading.text(card.get("name")).removeprefix("models/"),
                max_context=reading.count(card.get("inputTokenLimit")) or None,
            )
            for card in reading.tables(reading.table(reading.decode(body)).get("models"))
            if reading.text(card.get("name"))
        )

    def outgoing(self, call: Incoming) -> Outgoing:
        """The chat as contents, or as it is to the route that understands it. Raises BadRequestError."""
        if call.path != CHAT:
            raise BadRequestError(f"A server of the dialect vertex has no {call.path}.")
        if self._is_openai:
            folder = "/endpoints/openapi" if self._is_project else "/openai"
            path = f"{self._base}{folder}/chat/completions"
            return Outgoing(path=path, body=call.body, headers=self._headers)
        chat = read_chat(call, "vertex", _TAKES)
        folder = "/publishers/google/models/" if self._is_project else "/models/"
        verb = "streamGenerateContent?alt=sse" if call.is_stream else "generateContent"
        return Outgoing(
            path=f"{self._base}{folder}{quote(chat.model, safe='')}:{verb}",
            body=msgspec.json.encode(_request(chat)),
            headers=self._headers,
        )

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """The OpenAI-compatible route passes through."""
        if self._is_openai:
            return None
        chat = read_chat(call, "vertex", _TAKES)
        head = head_of(call, chat.model, with_usage=chat.with_usage)
        return CandidateReader(
            teller_for(call, head), is_stream=call.is_stream, request_id=call.request_id
        )

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """`{"error": {"code", "message", "status", "details"}}`, sometimes in a list."""
        value = reading.decode(body)
        value = reading.table(value[0] if isinstance(value, list) and value else value)
        retry_after = retry_after_of(headers)
        for detail in reading.tables(reading.table(value.get("error")).get("details")):
            delay = reading.text(detail.get("retryDelay"))
            if retry_after is None and delay.endswith("s"):
                retry_after = retry_after_of({"retry-after": delay[:-1]})
        return refusal(status, message_of(value, body), retry_after=retry_after)


def _request(chat: ChatRequest) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for ours, theirs in _NUMBERS.items():
        value = chat.number(ours)
        if value is not None and not (ours == "top_k" and value < 1):
            settings[theirs] = value
    if chat.max_tokens is not None:
        settings["maxOutputTokens"] = chat.max_tokens
    if chat.stop:
        settings["stopSequences"] = chat.stop
    settings |= _format(chat.body.get("response_format"))
    request: dict[str, Any] = {"contents": _contents(chat.turns)}
    if settings:
        request["generationConfig"] = settings
    if chat.system:
        request["systemInstruction"] = {"parts": [{"text": text} for text in chat.system]}
    if chat.tools:
        request["tools"] = [{"functionDeclarations": [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
            for tool in chat.tools
        ]}]  # fmt: skip
        request["toolConfig"] = {"functionCallingConfig": _mode(chat.tool_choice)}
    return request


def _mode(choice: str) -> dict[str, Any]:
    modes = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
    if choice in modes:
        return {"mode": modes[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice[1:]]}


def _format(wanted: Any) -> dict[str, Any]:
    kind = reading.table(wanted).get("type", "text")
    if kind == "text":
        return {}
    settings: dict[str, Any] = {"responseMimeType": "application/json"}
    if kind == "json_schema":
        schema = reading.table(reading.table(wanted).get("json_schema")).get("schema")
        if isinstance(schema, dict):
            return {**settings, "responseJsonSchema": schema}
    elif kind == "json_object":
        return settings
    raise BadRequestError(
        "'response_format': a server of the dialect vertex needs json_object or a json_schema.",
        param="response_format",
    )


def _contents(turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    """Answers of tools are the user's; those to one message stand in one content."""
    contents: list[dict[str, Any]] = []
    for turn in turns:
        role = "model" if turn.role == "assistant" else "user"
        parts = _parts(turn)
        if not parts:
            continue
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _parts(turn: Turn) -> list[dict[str, Any]]:
    if turn.role == "tool":
        answer = reading.decode(turn.text.encode())
        response = answer if isinstance(answer, dict) else {"output": turn.text}
        return [{"functionResponse": {"name": turn.call_name, "response": response}}]
    parts = [_part(part) for part in turn.parts]
    for call in turn.calls:
        part: dict[str, Any] = {"functionCall": {"name": call.name, "args": call.arguments}}
        google = reading.table(reading.table(call.extra).get("google"))
        if signature := reading.text(google.get("thought_signature")):
            part["thoughtSignature"] = signature
        parts.append(part)
    return parts


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    if part.data:
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    return {"fileData": {"mimeType": _image_type(part.url), "fileUri": part.url}}


def _image_type(url: str) -> str:
    ending = urlsplit(url).path.rpartition(".")[2].lower()
    types = {"png": "image/png", "webp": "image/webp", "gif": "image/gif", "heic": "image/heic"}
    return types.get(ending, "image/jpeg")
