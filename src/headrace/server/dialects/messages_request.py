"""Anthropic's request → chat's."""

from typing import Any, Final

import msgspec

from headrace.api.chat import (
    MAX_MESSAGES,
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionCall,
    TextPart,
    ToolCall,
)
from headrace.api.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    MessagesFields,
    RedactedThinkingBlock,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from headrace.core.errors import BadRequestError
from headrace.server.dialects.names import Names, shared_fields

NAMES: Final[Names] = (
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function\.name", "tool_choice.name"),
    (r"max_completion_tokens", "max_tokens"),
    (r"stop", "stop_sequences"),
    (r"max_thinking_tokens", "thinking.budget_tokens"),
    (r"reasoning_effort", "output_config.effort"),
    (r"response_format\.json_schema\.schema", "output_config.format.schema"),
    (r"response_format", "output_config.format"),
)


def to_chat(request: MessagesFields) -> ChatRequest:
    """The same conversation as a chat. Raises BadRequestError by Anthropic's names.

    Text after the results of tools is a message of its own. A last message of the assistant is continued.
    """
    for field in ("container", "mcp_servers"):
        if getattr(request, field):
            raise _fault(field, "is not supported by this server", "unsupported_parameter")
    if request.n is not None and request.n != 1:
        raise _fault("n", "must be 1: a message is one answer")
    messages: list[ChatMessage] = []
    if request.system:
        messages.append(ChatMessage(role="system", content=_system(request.system)))
    for place, message in enumerate(request.messages):
        messages += _translate(message, f"messages[{place}]")
    if len(messages) > MAX_MESSAGES:
        raise _fault("messages", f"hold more than {MAX_MESSAGES} turns and results")
    own = _own_fields(request)
    return ChatRequest(**{**shared_fields(request), **own, "messages": messages})


def _own_fields(request: MessagesFields) -> dict[str, Any]:
    thinking, choice = request.thinking, request.tool_choice
    fields: dict[str, Any] = {
        "tools": [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())] or None,
        "chat_template_kwargs": request.chat_template_kwargs,
    }
    if request.stop_sequences:
        fields["stop"] = [text for text in request.stop_sequences if text]
    if request.messages[-1].role == "assistant":
        fields["continue_final_message"] = True
    if choice is not None:
        fields["tool_choice"] = _choice(choice.type, choice.name)
        if choice.disable_parallel_tool_use is not None:
            fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if thinking is not None:
        is_on = thinking.type != "disabled"
        extra = request.chat_template_kwargs or {}
        fields["chat_template_kwargs"] = {"enable_thinking": is_on, **extra}
        fields["max_thinking_tokens"] = thinking.budget_tokens if is_on else None
        fields["include_reasoning"] = thinking.display != "omitted"
    return fields | _output(request)


def _output(request: MessagesFields) -> dict[str, Any]:
    config = request.output_config
    form = config.format if config is not None and config.format else request.output_format
    fields: dict[str, Any] = {}
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if form is None:
        return fields
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise _fault("output_config.format", "must be an object of type 'json_schema'")
    schema = {"name": "output", "schema": form.get("schema"), "strict": True}
    return fields | {"response_format": {"type": "json_schema", "json_schema": schema}}


def _system(system: str | list[TextBlock]) -> str | list[ContentPart]:
    return system if isinstance(system, str) else [TextPart(block.text) for block in system]


def _tool(tool: ToolDefinition, place: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise _fault(f"{place}.type", "must be 'custom'; no other tools are run here")
    if tool.input_schema is None:
        raise _fault(f"{place}.input_schema", "is required", "missing_required_parameter")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(kind: str, name: str | None) -> Any:
    if kind != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[kind]
    if name is None:
        raise _fault("tool_choice.name", "is required", "missing_required_parameter")
    return {"type": "function", "function": {"name": name}}


# -- messages ---------------------------------------------------------------------------------------


def _translate(message: InputMessage, place: str) -> list[ChatMessage]:
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    for number, block in enumerate(message.content):
        _check(block, message.role, f"{place}.content[{number}]")
    if message.role == "assistant":
        return [_said(message.content)]
    made: list[ChatMessage] = []
    texts: list[ContentPart] = []
    for number, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(TextPart(block.text))
        elif isinstance(block, ToolResultBlock):
            if texts:
                made.append(ChatMessage(role=message.role, content=texts))
            texts = []
            made.append(_result(block, f"{place}.content[{number}]"))
    if texts or not made:
        made.append(ChatMessage(role=message.role, content=texts))
    return made


def _check(block: Block, role: str, place: str) -> None:
    if isinstance(block, ImageBlock | DocumentBlock):
        raise _unread(block, place)
    is_own = isinstance(block, ThinkingBlock | RedactedThinkingBlock | ToolUseBlock)
    if is_own and role != "assistant":
        raise _fault(f"{place}.type", "belongs to the assistant")
    if isinstance(block, ToolResultBlock) and role != "user":
        raise _fault(f"{place}.type", "belongs to the user")


def _said(blocks: list[Block]) -> ChatMessage:
    texts: list[ContentPart] = [TextPart(b.text) for b in blocks if isinstance(b, TextBlock)]
    thoughts = [b.thinking for b in blocks if isinstance(b, ThinkingBlock)]
    calls = [
        ToolCall(id=b.id, function=FunctionCall(b.name, msgspec.json.encode(b.input).decode()))
        for b in blocks
        if isinstance(b, ToolUseBlock)
    ]
    return ChatMessage(
        role="assistant",
        content=texts or None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _result(block: ToolResultBlock, place: str) -> ChatMessage:
    content = block.content
    text = content if isinstance(content, str) else _result_text(content or [], place)
    if block.is_error:
        text = f"Error: {text}"
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=text)


def _result_text(blocks: list[ResultContent], place: str) -> str:
    texts = []
    for number, block in enumerate(blocks):
        if not isinstance(block, TextBlock):
            raise _unread(block, f"{place}.content[{number}]")
        texts.append(block.text)
    return "\n".join(texts)


def _unread(block: ImageBlock | DocumentBlock, place: str) -> BadRequestError:
    kind = block.__struct_config__.tag
    return BadRequestError(
        f"This model reads text only: {kind} input is not supported ('{place}').",
        param=place,
        code="unsupported_content",
    )


def _fault(place: str, what: str, code: str | None = None) -> BadRequestError:
    return BadRequestError(f"'{place}' {what}.", param=place, code=code)
