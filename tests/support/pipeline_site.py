"""A gateway with a pipeline, its replica, and servers that are no replicas, for the tests of pipelines."""

import json
from contextlib import asynccontextmanager

import msgspec
from tests.support.echo_model import asked, echo, spec_of_stub
from tests.support.in_process_gateway import CHAT, InProcessGateway, quick
from tests.support.stub_replica import Reply, stub_replica

from headrace.config.fleet.accounts import AccountsConfig
from headrace.config.fleet.models import ModelsConfig
from headrace.config.fleet.pipelines import PipelinesConfig

ANSWER = {"name": "answer", "llm": {"model": "m"}}


def outside(path: str, body: bytes) -> Reply:
    """Servers that are no replicas."""
    if path == "/v2/models/kind/infer":
        text = json.loads(body)["inputs"][0]["data"][0]
        label = "question" if text.endswith("?") else "order"
        outputs = [{"name": "label", "datatype": "BYTES", "shape": [1], "data": [label]}]
        return Reply(json.dumps({"outputs": outputs}).encode())
    if path == "/v2/models/rank/infer":
        texts = json.loads(body)["inputs"][0]["data"]
        data = [len(text) for text in texts]
        return Reply(json.dumps({"outputs": [{"name": "scores", "data": data}]}).encode())
    if path == "/v2/models/broken/infer":
        return Reply(b'{"error":"no such version"}', status=404)
    if path == "/search":
        top = json.loads(body)["top"]
        hits = [{"text": f"hit {n}", "score": 1 - n / 10} for n in range(9)]
        return Reply(json.dumps({"hits": hits[:top]}).encode())
    if path == "/greet?to=all":
        return Reply(b"hello")
    if path == "/json":
        return Reply(json.dumps({"told": json.loads(body)}).encode())
    return Reply(b"garbage", status=500)


class Site:
    """A gateway, its replica, and other servers."""

    def __init__(self, gateway, model, other):
        self.gateway = gateway
        self.model = model
        self.other = other

    async def ask(self, text="hi", **fields):
        fields = {"model": "pipe", "messages": [{"role": "user", "content": text}], **fields}
        return await self.gateway.ask(CHAT, **fields)

    @property
    def chats(self):
        return asked(self.model, CHAT)


@asynccontextmanager
async def site(steps=(), *, items=None, vectors=(), pipeline=None, accounts=None, rules=()):
    """`URL` within steps and stores is the address of the other servers."""
    async with stub_replica(echo) as model, stub_replica(outside) as other:
        items = items or [{"name": "pipe", "steps": [*steps, ANSWER], **(pipeline or {})}]
        text = json.dumps({"items": items, "vectors": list(vectors)}).replace("URL", other.url)
        config = quick(
            [spec_of_stub(model, "m", "small", "bad-1", "garbled-1")],
            pipelines=msgspec.json.decode(text, type=PipelinesConfig),
            accounts=accounts or AccountsConfig(),
            models=ModelsConfig(rules=rules),
        )
        made = InProcessGateway(config)
        await made.gateway.start()
        try:
            await made.ready(1)
            yield Site(made, model, other)
            await made.check_idle()
        finally:
            await made.gateway.close()


def llm(name, text, model="small", **fields):
    return {
        "name": name,
        "llm": {"model": model, "messages": [{"role": "user", "content": text}]},
        **fields,
    }
