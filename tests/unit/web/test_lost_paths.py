"""What somebody is told who asks for a path that there is not."""

import json

import pytest
from starlette.exceptions import HTTPException

from headrace.web.asgi import Message, Receive, Scope, Send
from headrace.web.error_shapes import error_writer_of
from headrace.web.middleware import Problems


async def lost(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/", "There is no '/' here; OpenAI's API is below /v1."),
        ("/nope", "There is no '/nope' here."),
    ],
)
async def test_a_path_that_there_is_not_is_named(path: str, message: str) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(each: Message) -> None:
        sent.append(each)

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    await Problems(lost, error_writer_of)(scope, receive, send)
    assert sent[0]["status"] == 404
    assert json.loads(sent[1]["body"])["error"]["message"] == message
