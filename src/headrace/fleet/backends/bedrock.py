"""Amazon Bedrock: chats by Converse and ConverseStream, signed or with an API key.

Written from the Bedrock Runtime API reference (docs.aws.amazon.com/bedrock/latest/APIReference).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.core.errors import BadRequestError, ConfigError
from headrace.fleet.backends import reading
from headrace.fleet.backends.chats import ChatRequest, Image, Turn, read_chat
from headrace.fleet.backends.converse import ConverseReader
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.refusals import message_of, refusal, retry_after_of
from headrace.fleet.backends.sigv4 import Credentials, signed_headers
from headrace.fleet.backends.telling import JSON, head_of, teller_for
from headrace.fleet.backends.values import (
    CHAT,
    AnswerReader,
    Continuation,
    Incoming,
    Outgoing,
    Refusal,
)
from headrace.fleet.upstream.pool import address_of

_TAKES: Final = ("top_k",)
_IMAGES: Final = ("png", "jpeg", "gif", "webp")
#: Errors whose status says something else than OpenAI's clients would read in it.
_STATUSES: Final[Mapping[str, int]] = {
    "ThrottlingException": 429, "ModelNotReadyException": 503, "ServiceUnavailableException": 503,
    "ServiceQuotaExceededException": 429, "ModelTimeoutException": 504, "ModelErrorException": 502,
}  # fmt: skip


class BedrockBackend(OpenAIBackend):
    """Only chats. It has neither health nor load, and its models must be configured."""

    dialect: ClassVar[Dialect] = Dialect.BEDROCK
    models_path: ClassVar[str | None] = None
    completions = Continuation.NONE

    def __init__(self, spec: ReplicaSpec) -> None:
        """Raises ConfigError for a key or region that cannot be."""
        self._host = address_of(spec.url).authority
        self._credentials = _credentials(spec)
        self._region = spec.region or _region(spec)
        super().__init__(spec)

    def _auth(self, spec: ReplicaSpec) -> dict[str, str]:
        return {} if self._credentials else super()._auth(spec)

    def outgoing(self, call: Incoming) -> Outgoing:
        """The chat as a Converse request, signed with the time at which it is sent. Raises BadRequestError."""
        if call.path != CHAT:
            raise BadRequestError(f"A server of the dialect bedrock has no {call.path}.")
        chat = read_chat(call, "bedrock", _TAKES)
        verb = "converse-stream" if call.is_stream else "converse"
        path = f"{self._base}/model/{quote(chat.model, safe='')}/{verb}"
        body = msgspec.json.encode(_request(chat))
        headers = self._headers
        if self._credentials is not None:
            headers = signed_headers(
                self._credentials,
                region=self._region,
                service="bedrock",
                host=self._host,
                path=path,
                body=body,
                content_type=JSON,
                now=call.sent_at or call.created,
            )
        return Outgoing(path=path, body=body, headers=headers)

    def reader(self, call: Incoming, headers: Mapping[str, str]) -> AnswerReader | None:
        """Frames or one object."""
        chat = read_chat(call, "bedrock", _TAKES)
        head = head_of(call, chat.model, with_usage=chat.with_usage)
        return ConverseReader(teller_for(call, head), is_stream=call.is_stream)

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        """The kind of error stands in a header."""
        kind = headers.get("x-amzn-errortype", "").partition(":")[0]
        value = reading.table(reading.decode(body))
        return refusal(
            _STATUSES.get(kind, status),
            message_of(value, body) or kind,
            retry_after=retry_after_of(headers),
        )


def _credentials(spec: ReplicaSpec) -> Credentials | None:
    parts = str(spec.api_key or "").split(":")
    if len(parts) == 1:
        return None
    if len(parts) > 3 or not all(parts):
        raise ConfigError(
            f"The api_key of '{spec.name}' must be an API key, or "
            "access key id:secret access key[:session token]."
        )
    return Credentials(*parts)


def _region(spec: ReplicaSpec) -> str:
    # bedrock-runtime.eu-west-1.amazonaws.com
    parts = address_of(spec.url).host.split(".")
    if len(parts) < 3 or not parts[0].startswith("bedrock-runtime"):
        raise ConfigError(f"The replica '{spec.name}' needs a region.")
    return parts[1]


def _request(chat: ChatRequest) -> dict[str, Any]:
    limits = {
        "maxTokens": chat.max_tokens,
        "temperature": chat.number("temperature"),
        "topP": chat.number("top_p"),
        "stopSequences": chat.stop or None,
    }
    request: dict[str, Any] = {"messages": _messages(chat.turns)}
    limits = {name: value for name, value in limits.items() if value is not None}
    if limits:
        request["inferenceConfig"] = limits
    if chat.system:
        request["system"] = [{"text": text} for text in chat.system if text]
    if chat.tools and chat.tool_choice != "none":
        request["toolConfig"] = _tools(chat)
    top_k = chat.number("top_k")
    if top_k is not None and top_k > 0:
        request["additionalModelRequestFields"] = {"top_k": top_k}
    return request


def _tools(chat: ChatRequest) -> dict[str, Any]:
    choices: dict[str, dict[str, Any]] = {"auto": {"auto": {}}, "required": {"any": {}}}
    specs = [
        {
            "name": tool.name,
            **({"description": tool.description} if tool.description else {}),
            "inputSchema": {"json": tool.parameters},
        }
        for tool in chat.tools
    ]
    choice = choices.get(chat.tool_choice, {"tool": {"name": chat.tool_choice[1:]}})
    return {"tools": [{"toolSpec": spec} for spec in specs], "toolChoice": choice}


def _messages(turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    """Roles alternate there, and answers of tools are the user's."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role = "assistant" if turn.role == "assistant" else "user"
        blocks = _blocks(turn)
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    return messages


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    blocks = [_block(part) for part in turn.parts]
    if turn.role == "tool":
        return [{"toolResult": {"toolUseId": turn.call_id, "content": blocks}}]
    return blocks + [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}
        for call in turn.calls
    ]


def _block(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    form = part.media_type.removeprefix("image/")
    if not part.data or form not in _IMAGES:
        raise BadRequestError(
            f"Images for a server of the dialect bedrock must be data: addresses of {', '.join(_IMAGES)}.",
            param="messages",
        )
    return {"image": {"format": form, "source": {"bytes": part.data}}}
