"""llama.cpp's own server, read and asked as the gateway does it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.support.llama_server import llama_server
from tests.support.patience import PATIENCE

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.backends.values import (
    CHAT,
    COMPLETIONS,
    Backend,
    Incoming,
    Outgoing,
    ResumePoint,
)
from headrace.fleet.cache.answers import read_answer
from headrace.fleet.cache.telling import told_whole
from headrace.fleet.sse import parse
from headrace.modeling.weights.sources import resolve

MESSAGES = [{"role": "user", "content": "Name three fruits."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "stream": True, "cache_prompt": False}


@pytest.fixture(scope="module")
def llama() -> Iterator[tuple[httpx.Client, Backend]]:
    path = resolve("smollm2-135m", progress=False)
    with (
        llama_server(path) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        yield client, backend_for(ReplicaSpec(url=server.url, dialect=Dialect.LLAMACPP))


def ask(client: httpx.Client, outgoing: Outgoing | None) -> httpx.Response:
    assert outgoing is not None
    return client.request(
        outgoing.method,
        outgoing.path,
        headers={**outgoing.headers, "connection": "close"},
        content=outgoing.body,
    )


def call(path: str, body: dict[str, Any]) -> Incoming:
    return Incoming(path=path, body=json.dumps(body).encode(), is_stream=True)


def pieces(body: bytes) -> list[str]:
    events = parse(body)
    assert events[-1].is_end
    found = []
    for event in events[:-1]:
        for choice in json.loads(event.data or b"{}").get("choices", ()):
            found.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return [piece for piece in found if piece]


def test_probes(llama: tuple[httpx.Client, Backend]) -> None:
    client, backend = llama
    health = ask(client, backend.health_probe())
    assert backend.read_health(health.status_code, health.content).is_ready
    load = ask(client, backend.load_probe())
    found = backend.read_load(load.status_code, load.content)
    assert (found.num_running, found.max_running, found.missing) == (0, 1, ())
    models = ask(client, backend.models_probe())
    (card,) = backend.read_models(models.status_code, models.content)
    assert card.id
    assert card.max_context == 512


def test_a_refusal(llama: tuple[httpx.Client, Backend]) -> None:
    client, backend = llama
    answer = ask(client, backend.outgoing(call(CHAT, {"messages": "none"})))
    refusal = backend.refusal(answer.status_code, dict(answer.headers), answer.content)
    assert 400 <= refusal.status < 600
    assert json.loads(refusal.body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "Three fruits: apple,"})],
)
def test_an_answer_that_broke_off_is_gone_on_with(
    llama: tuple[httpx.Client, Backend], path: str, prompt: dict[str, Any]
) -> None:
    client, backend = llama
    asked = call(path, {**GREEDY, **prompt})
    whole = pieces(ask(client, backend.outgoing(asked)).content)
    assert len(whole) > 8
    made = whole[:6]
    going_on = backend.resume(asked, ResumePoint(text="".join(made), num_tokens=len(made)))
    assert going_on is not None
    rest = pieces(ask(client, backend.outgoing(going_on)).content)
    assert rest
    # Tokens may be cut differently at the seam, so only the length is held to.
    assert len(rest) <= GREEDY["max_tokens"] - len(made)
    assert "".join(rest).strip()
    assert "".join(made) not in "".join(rest)


def test_its_streams_can_be_kept(llama: tuple[httpx.Client, Backend]) -> None:
    client, backend = llama
    body = {**GREEDY, "messages": MESSAGES, "stream_options": {"include_usage": True}}
    stream = ask(client, backend.outgoing(call(CHAT, body))).content
    answer = read_answer(CHAT, stream, is_stream=True, now=0.0)
    assert answer is not None
    assert answer.usage is not None
    told = json.loads(told_whole(answer, "x"))
    assert told["choices"][0]["message"]["content"] == "".join(pieces(stream))
