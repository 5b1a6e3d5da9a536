"""What a response says of its request, before it has output."""

from headrace.api.responses import (
    FunctionTool,
    ReasoningOptions,
    Response,
    ResponsesRequest,
    TextOptionsField,
)
from headrace.core.request import Request
from headrace.server.shapes import Head


def begun_response(
    head: Head, wire: ResponsesRequest, request: Request, *, is_stored: bool
) -> Response:
    """The response as it begins; sampling is told as it was resolved."""
    text = wire.text or TextOptionsField()
    params = request.params
    return Response(
        id=head.id,
        created_at=head.created,
        status="in_progress",
        background=bool(wire.background),
        instructions=wire.instructions,
        max_output_tokens=wire.max_output_tokens,
        max_tool_calls=wire.max_tool_calls,
        metadata=wire.metadata or {},
        model=head.model,
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        previous_response_id=wire.previous_response_id,
        prompt_cache_key=wire.prompt_cache_key,
        reasoning=wire.reasoning or ReasoningOptions(),
        safety_identifier=wire.safety_identifier,
        store=is_stored,
        temperature=params.temperature,
        text=TextOptionsField(
            format=text.format or {"type": "text"}, verbosity=text.verbosity or "medium"
        ),
        tool_choice="auto" if wire.tool_choice is None else wire.tool_choice,
        tools=[_told(tool) for tool in wire.tools or ()],
        top_logprobs=wire.top_logprobs or 0,
        top_p=params.top_p,
    )


def _told(tool: FunctionTool) -> FunctionTool:
    return FunctionTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=bool(tool.strict),
    )
