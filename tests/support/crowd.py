"""Hundreds of clients, some of whom leave: each has a fate, and says what became of it."""

import asyncio
import json
import random
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httpx
from tests.support.patience import PATIENCE


class Fate(Enum):
    """What a client does."""

    STREAM = "reads its stream to the end"
    WHOLE = "waits for its whole answer"
    LEAVE_STREAM = "leaves after some events"
    LEAVE_WHOLE = "leaves before its answer"
    LEAVE_BODY = "leaves before its body is sent"


FATES = (Fate.STREAM,) * 4 + (Fate.WHOLE,) * 3 + tuple(Fate)


@dataclass(frozen=True)
class Visit:
    """One request of one client."""

    fate: Fate
    path: str
    body: dict[str, Any]
    patience: float
    """Seconds, or events of a stream, after which a leaving client leaves."""


@dataclass
class Tally:
    """What became of everybody."""

    answered: int = 0
    left: int = 0
    refused: int = 0


def random_visit(rng: random.Random, *, max_prompt: int, max_tokens: int) -> Visit:
    """Any mixture of lengths, sampling parameters and fates."""
    words = ["tide", "the", "lamp", "of", "a", "river", "seven", "blue", "runs", "Ünï", "漢", "😀"]
    text = " ".join(rng.choice(words) for _ in range(rng.randint(1, max_prompt)))
    fate = rng.choice(FATES)
    body: dict[str, Any] = {
        "max_tokens": rng.randint(1, max_tokens),
        "temperature": rng.choice((0, 0.7, 1.0, 1.5)),
        "top_p": rng.choice((1.0, 0.9)),
        "top_k": rng.choice((0, 1, 40)),
        "min_p": rng.choice((0.0, 0.05)),
        "frequency_penalty": rng.choice((0.0, 0.0, 0.8)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.2)),
        "n": rng.choice((1, 1, 1, 2, 3)),
        "priority": rng.choice((0, 0, 0, -1, 2)),
        "stream": fate in (Fate.STREAM, Fate.LEAVE_STREAM),
        "ignore_eos": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        body["stop"] = [rng.choice(("e", " the", "\n", "zz"))]
    if rng.random() < 0.5:
        body["seed"] = rng.randrange(1 << 40)
    if rng.random() < 0.2:
        body["logit_bias"] = {str(rng.randrange(300)): rng.choice((-100, 5))}
    if rng.random() < 0.5:
        messages = [{"role": "user", "content": text}]
        body |= {"messages": messages, "logprobs": rng.random() < 0.3}
        return Visit(fate, "/v1/chat/completions", body, rng.uniform(0.0, 0.3))
    if rng.random() < 0.3:
        body["logprobs"] = rng.randint(0, 5)
    return Visit(fate, "/v1/completions", body | {"prompt": text}, rng.uniform(0.0, 0.3))


async def visit_all(url: str, visits: list[Visit], *, at_once: int) -> Tally:
    """Run them, `at_once` at a time. Raises when an answer is not as it must be."""
    tally = Tally()
    waiting = iter(visits)
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once // 2)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:

        async def worker() -> None:
            for visit in waiting:
                await _visit(client, visit, tally)

        await asyncio.gather(*(worker() for _ in range(at_once)))
    return tally


async def _visit(client: httpx.AsyncClient, visit: Visit, tally: Tally) -> None:
    match visit.fate:
        case Fate.WHOLE:
            _check_whole(await client.post(visit.path, json=visit.body), visit)
            tally.answered += 1
        case Fate.LEAVE_WHOLE:
            try:
                async with asyncio.timeout(visit.patience):
                    await client.post(visit.path, json=visit.body)
                tally.answered += 1
            except TimeoutError:
                tally.left += 1
        case Fate.LEAVE_BODY:
            await _leave_body(client, visit)
            tally.left += 1
        case Fate.STREAM | Fate.LEAVE_STREAM:
            async with client.stream("POST", visit.path, json=visit.body) as response:
                assert response.status_code == 200, await response.aread()
                lines: list[str] = []
                async for line in response.aiter_lines():
                    if line:
                        lines.append(line)
                    if visit.fate is Fate.LEAVE_STREAM and len(lines) > 40 * visit.patience:
                        tally.left += 1
                        return
            _check_stream(lines, visit)
            tally.answered += 1


def _check_whole(response: httpx.Response, visit: Visit) -> None:
    assert response.status_code == 200, response.text
    answer = response.json()
    assert [c["index"] for c in answer["choices"]] == list(range(visit.body["n"]))
    assert all(c["finish_reason"] in ("stop", "length") for c in answer["choices"])
    most = visit.body["n"] * visit.body["max_tokens"]
    assert visit.body["n"] <= answer["usage"]["completion_tokens"] <= most


def _check_stream(lines: list[str], visit: Visit) -> None:
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    finished = [
        choice["index"]
        for event in events
        for choice in event["choices"]
        if choice["finish_reason"] is not None
    ]
    assert sorted(finished) == list(range(visit.body["n"]))


async def _leave_body(client: httpx.AsyncClient, visit: Visit) -> None:
    data = json.dumps(visit.body).encode()
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    head = (
        f"POST {visit.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data[: len(data) // 2])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
