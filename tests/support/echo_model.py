"""A replica that answers chats with what it was told, and embeds texts by what they are about."""

import json
from typing import Any

from tests.support.stub_replica import Reply, StubReplica

from headrace.config.fleet.replicas import Dialect, ReplicaSpec

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
#: What texts may be about: each its direction.
SUBJECTS = ("cat", "dog", "car")


def spec_of_stub(stub: StubReplica, *models: str) -> ReplicaSpec:
    """A replica that serves these models, chats and embeddings."""
    return ReplicaSpec(url=stub.url, dialect=Dialect.OPENAI, models=models or ("m",))


def asked(stub: StubReplica, path: str) -> list[dict[str, Any]]:
    """Bodies that were posted there."""
    return [json.loads(body) for at, body in stub.posts if at == path]


def echo(path: str, body: bytes) -> Reply:
    """A handler for `stub_replica`. A model whose name begins with `bad-` refuses, one with `garbled-` talks nonsense."""
    if path == "/v1/models":
        return Reply(b'{"data":[{"id":"m"}]}')
    given = json.loads(body)
    model = given["model"]
    if model.startswith("bad-"):
        return Reply(b'{"error":{"message":"too long for me"}}', status=400)
    if model.startswith("garbled-"):
        return Reply(b'{"choices":[]}')
    if path == "/v1/embeddings":
        vector = [float(subject in given["input"]) + 0.1 for subject in SUBJECTS]
        return Reply(json.dumps({"data": [{"index": 0, "embedding": vector}]}).encode())
    text = f"<{given['messages'][-1]['content']}>"
    if given.get("stream"):
        return Reply(_events(text, model), content_type="text/event-stream")
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    whole = {"id": "a", "created": 5, "model": model, "choices": [choice], "usage": USAGE}
    return Reply(json.dumps(whole).encode())


def _events(text: str, model: str) -> list[bytes]:
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": char}, None) for char in text]
    deltas.append(({}, "stop"))
    chunks = [
        {"id": "a", "created": 5, "model": model,
         "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in deltas
    ]  # fmt: skip
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]
