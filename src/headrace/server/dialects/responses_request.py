"""A request for a response → chat's."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import structs

from headrace.api.chat import (
    MAX_MESSAGES,
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionCall,
    RefusalPart,
    TextPart,
    ToolCall,
)
from headrace.api.responses import (
    FunctionTool,
    InputItem,
    InputText,
    ItemContent,
    OutputText,
    ResponsesFields,
    ResponsesRequest,
)
from headrace.core.errors import BadRequestError
from headrace.server.dialects.names import Names, shared_fields

NAMES: Final[Names] = (
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function\.name", "tool_choice.name"),
    (r"tool_choice\.allowed_tools", "tool_choice"),
    (r"max_completion_tokens", "max_output_tokens"),
    (r"max_tokens", "max_output_tokens"),
    (r"response_format\.json_schema", "text.format"),
    (r"response_format", "text.format"),
    (r"reasoning_effort", "reasoning.effort"),
    # One item may become a part of a message, and a message may be a stored one.
    (r"messages(?:\[\d+\][\w\[\].]*)?", "input"),
)
LOGPROBS: Final = "message.output_text.logprobs"
#: Finds an item by its id; raises for one that is not kept.
FindItem = Callable[[str, str], InputItem]


def input_items(request: ResponsesFields, prefix: str, find: FindItem) -> list[InputItem]:
    """The request's own input in full: every item with a type and an id, contents as lists.

    Ids of ours are `prefix` and a number. Raises BadRequestError for items that are not whole.
    """
    given = request.input
    if given is None:
        raise _fault("input", "is required", "missing_required_parameter")
    if isinstance(given, str):
        given = [InputItem(role="user", content=given)]
    return [_whole(item, place, prefix, find) for place, item in enumerate(given)]


def to_chat(
    request: ResponsesFields, history: Sequence[InputItem], items: Sequence[InputItem]
) -> ChatRequest:
    """The conversation so far and the request's own items as a chat. Raises BadRequestError."""
    for field in ("conversation", "prompt"):
        if getattr(request, field) is not None:
            raise _fault(field, "is not supported by this server", "unsupported_parameter")
    turns = _Turns()
    if request.instructions:
        turns.say(ChatMessage(role="system", content=request.instructions))
    for item in (*history, *items):
        turns.add(item)
    messages = turns.end()
    if not messages:
        raise _fault("input", "must hold at least one item")
    if len(messages) > MAX_MESSAGES:
        raise _fault("input", f"makes more than {MAX_MESSAGES} messages, earlier ones included")
    return ChatRequest(**{**shared_fields(request), **_own_fields(request), "messages": messages})


# -- fields -----------------------------------------------------------------------------------------


def _own_fields(request: ResponsesFields) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "tools": [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())] or None,
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "chat_template_kwargs": request.chat_template_kwargs,
        "stream_options": None,
    }
    if request.max_output_tokens is not None:
        fields["max_completion_tokens"] = request.max_output_tokens
    if request.text is not None and request.text.format is not None:
        fields["response_format"] = _format(request.text.format)
    effort = request.reasoning.effort if request.reasoning is not None else None
    if effort == "none":
        extra = request.chat_template_kwargs or {}
        fields["chat_template_kwargs"] = {"enable_thinking": False, **extra}
    elif effort is not None:
        fields["reasoning_effort"] = effort
    if isinstance(request, ResponsesRequest) and wants_logprobs(request):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return fields


def wants_logprobs(request: ResponsesRequest) -> bool:
    """Asked for by a number or by name."""
    return bool(request.top_logprobs) or LOGPROBS in (request.include or ())


def _tool(tool: FunctionTool, place: str) -> dict[str, Any]:
    if tool.type != "function":
        raise _fault(f"{place}.type", "must be 'function'; no other tools are run here")
    function = {k: v for k, v in structs.asdict(tool).items() if k != "type" and v is not None}
    return {"type": "function", "function": function}


def _format(form: dict[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return form
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


# -- items ------------------------------------------------------------------------------------------


def _whole(item: InputItem, place: int, prefix: str, find: FindItem) -> InputItem:
    where = f"input[{place}]"
    kind = item.type or "message"
    if kind == "item_reference":
        return find(_need(item.id, f"{where}.id"), f"{where}.id")
    if kind == "message":
        _need(item.role, f"{where}.role")
        contents = _contents(item.content, item.role == "assistant", f"{where}.content")
        item = structs.replace(item, content=contents, status=item.status or "completed")
    elif kind == "function_call":
        for name in ("call_id", "name", "arguments"):
            _need(getattr(item, name), f"{where}.{name}")
    elif kind == "function_call_output":
        _need(item.call_id, f"{where}.call_id")
        output = _need(item.output, f"{where}.output")
        if not isinstance(output, str):
            _contents(output, False, f"{where}.output")
    elif kind != "reasoning":
        raise _fault(
            f"{where}.type",
            "must be message, function_call, function_call_output, reasoning or item_reference",
            "unsupported_content",
        )
    return structs.replace(item, type=kind, id=item.id or f"{prefix}{place}")


def _contents(content: Any, is_own: bool, where: str) -> list[ItemContent]:
    """A message's content as a list of what the model can read."""
    if content is None:
        raise _fault(where, "is required", "missing_required_parameter")
    if isinstance(content, str):
        return [OutputText(content) if is_own else InputText(content)]
    for place, part in enumerate(content):
        if not isinstance(part, InputText | OutputText | RefusalPart):
            name = f"{where}[{place}]"
            kind = part.__struct_config__.tag
            raise BadRequestError(
                f"This model reads text only: '{name}' is of type '{kind}'.",
                param=name,
                code="unsupported_content",
            )
    return list(content)


class _Turns:
    """Items in a row become messages: what the assistant thought, said and called goes together."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._thoughts: list[str] = []
        self._said: list[ContentPart] = []
        self._calls: list[ToolCall] = []

    def add(self, item: InputItem) -> None:
        match item.type:
            case "reasoning":
                if self._said or self._calls:
                    self._flush()
                parts = item.content or item.summary or []
                self._thoughts += [parts] if isinstance(parts, str) else [_text(p) for p in parts]
            case "function_call":
                call = FunctionCall(item.name or "", item.arguments)
                self._calls.append(ToolCall(id=item.call_id, function=call))
            case "function_call_output":
                self.say(
                    ChatMessage(
                        role="tool", tool_call_id=item.call_id, content=_output(item.output)
                    )
                )
            case _ if item.role == "assistant":
                if self._said or self._calls:
                    self._flush()
                self._said = _parts(item.content)
            case _:
                self.say(ChatMessage(role=item.role or "user", content=_parts(item.content)))

    def say(self, message: ChatMessage) -> None:
        """A message of somebody else's."""
        self._flush()
        self._messages.append(message)

    def end(self) -> list[ChatMessage]:
        self._flush()
        return self._messages

    def _flush(self) -> None:
        if self._said or self._calls or self._thoughts:
            self._messages.append(
                ChatMessage(
                    role="assistant",
                    content=self._said or None,
                    reasoning_content="\n".join(self._thoughts) or None,
                    tool_calls=self._calls or None,
                )
            )
        self._thoughts, self._said, self._calls = [], [], []


def _parts(content: Any) -> list[ContentPart]:
    return [TextPart(_text(part)) for part in content or ()]


def _text(part: ItemContent) -> str:
    if isinstance(part, RefusalPart):
        return part.refusal
    return getattr(part, "text", "")


def _output(output: Any) -> str:
    return output if isinstance(output, str) else "\n".join(_text(part) for part in output or ())


def _need(value: Any, where: str) -> Any:
    if value is None:
        raise _fault(where, "is required", "missing_required_parameter")
    return value


def _fault(place: str, what: str, code: str | None = None) -> BadRequestError:
    return BadRequestError(f"'{place}' {what}.", param=place, code=code)
