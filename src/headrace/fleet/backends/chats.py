"""An OpenAI chat request, read for dialects that say it in other words.

What cannot be said is refused, by this rule: a field that changes what is answered and has no counterpart is a 400 that
names it, unless its value changes nothing (`n: 1`, a penalty of 0). Fields that only label, route or bill are left out, and
so is `seed`, which OpenAI itself calls best effort.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headrace.core.errors import BadRequestError
from headrace.fleet.backends import reading
from headrace.fleet.backends.values import Incoming

#: Left out wherever they have no counterpart.
IGNORED: Final = frozenset({
    "model", "messages", "stream", "stream_options", "user", "metadata", "store", "service_tier", "seed",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "priority", "request_id", "rid",
    "cache_salt", "include_reasoning", "verbosity",
})  # fmt: skip
#: Fields that every translation takes.
TAKEN: Final = frozenset({
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "tools", "tool_choice",
    "parallel_tool_calls",
})  # fmt: skip
#: Values that ask for nothing.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,), "best_of": (1,), "logprobs": (False,), "top_logprobs": (0,), "frequency_penalty": (0,),
    "presence_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},), "echo": (False,), "top_k": (-1, 0),
    "min_p": (0,), "min_tokens": (0,), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "ignore_eos": (False,), "add_generation_prompt": (True,), "continue_final_message": (False,),
}  # fmt: skip
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+=-]+)*;base64,", re.ASCII)


class Image(Struct, frozen=True):
    """An image of a message: `data` (base64) with its type, or a `url`."""

    media_type: str = ""
    data: str = ""
    url: str = ""


class CalledTool(Struct, frozen=True):
    """A call that the assistant made."""

    id: str
    name: str
    arguments: dict[str, Any]
    extra: Any = None
    """Its `extra_content`, which some servers want back."""


class Turn(Struct, frozen=True, kw_only=True):
    """One message. Roles are user, assistant and tool; system messages are kept apart."""

    role: str
    parts: tuple[str | Image, ...] = ()
    calls: tuple[CalledTool, ...] = ()
    call_id: str = ""
    """Of a tool's answer: the call."""
    call_name: str = ""
    """And the tool's name."""

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(part for part in self.parts if isinstance(part, str))


class Tool(Struct, frozen=True):
    """A function that may be called."""

    name: str
    description: str
    parameters: dict[str, Any]


class ChatRequest(Struct, frozen=True, kw_only=True):
    """What a chat asks for."""

    model: str
    system: tuple[str, ...]
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    tool_choice: str
    """auto, none, required, or `=` and a name; empty where there are no tools."""
    one_call: bool
    """At most one call."""
    max_tokens: int | None
    stop: tuple[str, ...]
    with_usage: bool
    body: Mapping[str, Any]
    """For fields that only some take."""

    def number(self, name: str) -> float | None:
        """A number of the body. Raises BadRequestError for what is none."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRequestError(f"'{name}': expected a number.", param=name)
        return value


def read_chat(call: Incoming, who: str, takes: Iterable[str] = ()) -> ChatRequest:
    """Read a request. `takes` are fields beside `TAKEN` that `who` understands. Raises BadRequestError."""
    body = read_body(call)
    refuse_others(body, who, {*TAKEN, *takes})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("'messages': expected a list that is not empty.", param="messages")
    system: list[str] = []
    turns: list[Turn] = []
    names: dict[str, str] = {}
    for number, message in enumerate(messages):
        turn = _turn(message, f"messages[{number}]", who, names)
        if turn.role == "system":
            system.append(turn.text)
        else:
            turns.append(turn)
    tools = tuple(_tool(t, f"tools[{i}]") for i, t in enumerate(_listed(body, "tools", "tools")))
    return ChatRequest(
        model=reading.text(body.get("model")),
        system=tuple(system),
        turns=tuple(turns),
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice"), tools),
        one_call=body.get("parallel_tool_calls") is False,
        max_tokens=_max_tokens(body),
        stop=read_stop(body),
        with_usage=wants_usage(body),
        body=body,
    )


def read_body(call: Incoming) -> dict[str, Any]:
    """The object. Raises BadRequestError."""
    body = reading.decode(call.body)
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.", code="invalid_json")
    return body


def refuse_others(body: Mapping[str, Any], who: str, takes: Iterable[str]) -> None:
    """Raises BadRequestError for the first field that `who` cannot be told."""
    known = {*takes, *IGNORED}
    for name, value in body.items():
        if name not in known and value is not None and value not in _NEUTRAL.get(name, ()):
            raise BadRequestError(
                f"'{name}' cannot be said to a server of the dialect {who}.",
                param=name,
                code="unsupported_parameter",
            )


def wants_usage(body: Mapping[str, Any]) -> bool:
    """A stream is to end with usage."""
    return reading.table(body.get("stream_options")).get("include_usage") is True


def read_stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Stop strings. Raises BadRequestError."""
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise BadRequestError("'stop': expected a string or a list of strings.", param="stop")
    return tuple(item for item in stops if item)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadRequestError(f"'{name}': expected a number of at least 1.", param=name)
            return value
    return None


def _turn(message: Any, at: str, who: str, names: dict[str, str]) -> Turn:
    if not isinstance(message, dict):
        raise BadRequestError(f"'{at}': expected an object.", param=at)
    role = message.get("role")
    parts = _parts(message.get("content"), f"{at}.content", who)
    if role in ("system", "developer"):
        return Turn(role="system", parts=parts)
    if role == "user":
        return Turn(role="user", parts=parts)
    if role == "assistant":
        calls = tuple(
            _call(made, f"{at}.tool_calls[{i}]")
            for i, made in enumerate(_listed(message, "tool_calls", f"{at}.tool_calls"))
        )
        names.update({made.id: made.name for made in calls})
        return Turn(role="assistant", parts=parts, calls=calls)
    if role == "tool":
        call_id = reading.text(message.get("tool_call_id"))
        if call_id not in names:
            raise BadRequestError(
                f"'{at}.tool_call_id': no call of this id came before.", param=f"{at}.tool_call_id"
            )
        return Turn(role="tool", parts=parts, call_id=call_id, call_name=names[call_id])
    raise BadRequestError(
        f"'{at}.role': expected system, developer, user, assistant or tool.", param=f"{at}.role"
    )


def _listed(holder: Mapping[str, Any], name: str, at: str) -> list[Any]:
    found = holder.get(name)
    if found is not None and not isinstance(found, list):
        raise BadRequestError(f"'{at}': expected a list.", param=at)
    return found or []


def _parts(content: Any, at: str, who: str) -> tuple[str | Image, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,) if content else ()
    if not isinstance(content, list):
        raise BadRequestError(f"'{at}': expected a string or a list of parts.", param=at)
    return tuple(_part(part, f"{at}[{i}]", who) for i, part in enumerate(content))


def _part(part: Any, at: str, who: str) -> str | Image:
    kind = reading.table(part).get("type")
    if kind in ("text", "refusal") and isinstance(part.get(kind), str):
        return str(part[kind])
    if kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else reading.text(reading.table(image).get("url"))
        return _image(url, at)
    raise BadRequestError(
        f"'{at}': a part of this type cannot be said to a server of the dialect {who}.", param=at
    )


def _image(url: str, at: str) -> Image:
    found = _DATA_URL.match(url)
    if found:
        return Image(media_type=found[1].lower(), data=url[found.end() :])
    if url.startswith(("https://", "http://", "gs://")):
        return Image(url=url)
    raise BadRequestError(f"'{at}.image_url': expected an https: or data: address.", param=at)


def _call(made: Any, at: str) -> CalledTool:
    function = reading.table(reading.table(made).get("function"))
    name = reading.text(function.get("name"))
    said = function.get("arguments") or "{}"
    arguments = reading.decode(said.encode()) if isinstance(said, str) else None
    if not name or not isinstance(arguments, dict):
        raise BadRequestError(
            f"'{at}': expected a function with a name and arguments, an object as JSON text.",
            param=at,
        )
    return CalledTool(reading.text(made.get("id")), name, arguments, made.get("extra_content"))


def _tool(tool: Any, at: str) -> Tool:
    function = reading.table(reading.table(tool).get("function"))
    name = reading.text(function.get("name"))
    if reading.table(tool).get("type", "function") != "function" or not name:
        raise BadRequestError(f"'{at}': expected a function with a name.", param=at)
    parameters = function.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        parameters = {"type": "object", "properties": {}}
    return Tool(name, reading.text(function.get("description")), parameters)


def _tool_choice(choice: Any, tools: tuple[Tool, ...]) -> str:
    if not tools:
        if choice in (None, "none", "auto"):
            return ""
        raise BadRequestError("'tool_choice' needs 'tools'.", param="tool_choice")
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        return str(choice)
    name = reading.text(reading.table(reading.table(choice).get("function")).get("name"))
    if name not in {tool.name for tool in tools}:
        raise BadRequestError("'tool_choice' names none of the tools.", param="tool_choice")
    return "=" + name
