"""A model whose rounds of /v1/responses are written down, and a loop around it."""

import json

from tests.support.scripted_tools import Heard, Sources, toolbox_of

from headrace.fleet.gateway.tools.plan import read_plan
from headrace.fleet.gateway.tools.responses_loop import ResponsesLoop

MCP = {"type": "mcp", "server_label": "calc"}
MINE = {"type": "function", "name": "mine", "parameters": {}}


def text(said):
    """A message of an answer."""
    part = {"type": "output_text", "text": said, "annotations": []}
    return {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def wants(name, arguments="{}", call_id="c1"):
    """A call of a function."""
    return {
        "type": "function_call",
        "id": f"f{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def response(*output, tokens=10):
    """One round."""
    details = {"input_tokens_details": {"cached_tokens": 1}}
    usage = {"input_tokens": tokens, "output_tokens": 2, "total_tokens": tokens + 2, **details}
    return {
        "id": "resp",
        "object": "response",
        "status": "completed",
        "output": output,
        "usage": usage,
    }


class Model:
    """Answers round after round."""

    def __init__(self, *rounds, status=200):
        self.asked = []
        self._rounds = iter(rounds)
        self._status = status

    async def ask(self, body, send):
        self.asked.append(json.loads(json.dumps(body)))
        said = next(self._rounds)
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        await send({"type": "http.response.body", "body": data})


async def looped(model, *, tools=(MCP,), sources=None, config=None, **fields):
    """What a client heard, and whose tools were called."""
    sources = sources or Sources({"calc": ("add",)})
    toolbox = toolbox_of(sources, **(config or {}))
    body = {"model": "m", "input": "q", "tools": list(tools), **fields}
    plan = await read_plan(toolbox, body, "m", "t")
    heard = Heard()
    await ResponsesLoop(toolbox, plan, body, "req", model.ask).run(heard.send)
    return heard, sources
