"""Replicas are asked for their state, woken and parked over HTTP, by whoever has the control token."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.stub_replica import Reply, StubReplica, stub_replica

from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret
from headrace.core.errors import DriverError
from headrace.core.stats import ReplicaState
from headrace.fleet.autoscaler.names import expected_names, fits
from headrace.fleet.autoscaler.warmth import HttpWarmth
from headrace.fleet.gateway.build import make_replica
from headrace.fleet.replica import Replica

POOL = PoolConfig(name="chat", model="m", serve={"alias": "a,b"})


class Server:
    """Is in a state, and does what it is told."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.status = 200

    def answer(self, path: str, _body: bytes) -> Reply:
        if path != "/load" and self.status == 200:
            self.state = {"park": "parked"}.get(path.rpartition("/")[2], "ready")
        body = {"state": self.state, "seconds": 0.1, "model": "m"}
        if self.status != 200:
            body = {"error": {"message": "No memory."}}
        return Reply(json.dumps(body).encode(), status=self.status)


@asynccontextmanager
async def replica_of(
    server: Server, token: str | None = "t0k"
) -> AsyncIterator[tuple[Replica, StubReplica]]:
    async with stub_replica(server.answer) as stub:
        secret = None if token is None else Secret(token)
        replica = make_replica(FleetConfig(), ReplicaSpec(url=stub.url, control_token=secret))
        yield replica, stub
        replica.pool.close()


@pytest.mark.parametrize("state", list(ReplicaState))
async def test_its_own_word(state: ReplicaState) -> None:
    async with replica_of(Server(state)) as (replica, _):
        assert await HttpWarmth().state(replica) is state


async def test_nonsense_and_silence_say_nothing() -> None:
    for server in (Server("dancing"), Server("parked")):
        server.status = 200 if server.state == "dancing" else 503
        async with replica_of(server) as (replica, _):
            assert await HttpWarmth().state(replica) is None
    spec = ReplicaSpec(url="http://127.0.0.1:9", dialect=Dialect.OPENAI)
    assert await HttpWarmth().state(make_replica(FleetConfig(), spec)) is None


@pytest.mark.parametrize(
    ("state", "path", "said"),
    [
        ("parked", "/control/unpark", {}),
        ("empty", "/control/load", {"model": "m", "served_model_name": ["a", "b"]}),
    ],
)
async def test_waking(state: str, path: str, said: dict[str, object]) -> None:
    server = Server(state)
    async with replica_of(server) as (replica, stub):
        await HttpWarmth().wake(replica, POOL)
        assert server.state == "ready"
        [(asked, body)] = stub.posts
        assert asked == path
        assert said.items() <= json.loads(body).items()


async def test_parking() -> None:
    server = Server("ready")
    async with replica_of(server) as (replica, stub):
        await HttpWarmth().park(replica)
        assert server.state == "parked"
        assert stub.posts == [("/control/park", b'{"timeout":0.0}')]


async def test_what_it_will_not_do_is_told() -> None:
    server = Server("parked")
    server.status = 503
    async with replica_of(server) as (replica, _):
        with pytest.raises(DriverError, match="No memory"):
            await HttpWarmth().wake(replica, POOL)
    async with replica_of(Server("parked"), None) as (replica, stub):
        with pytest.raises(DriverError, match="control token"):
            await HttpWarmth().park(replica)
        assert stub.posts == []


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("smollm2-135m", ("smollm2-135m",)),
        ("/models/Some.Q4_0.gguf", ("Some.Q4_0",)),
        ("hf:org/Model-7B", ("Model-7B",)),
        ("hf:org/Model-7B:Model-7B.Q4_1.gguf", ("Model-7B.Q4_1",)),
        ("https://host/dir/x.gguf", ("x",)),
        ("/models/dir/", ("dir",)),
    ],
)
def test_names_before_any_replica_has_told_them(model: str, names: tuple[str, ...]) -> None:
    assert expected_names(PoolConfig(name="p", model=model)) == names
    assert expected_names(PoolConfig(name="p", model=model, serve={"served-model-name": "x y"})) == (
        "x", "y",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lane", "fit"),
    [
        ("m", True), ("n", False), ("mm", False), ("m@2", True), ("m@3", False),
        ("m@zone=a", True), ("m@zone=b", False), ("m@2@zone=a", True), ("m@2@zone=a,gpu=x", False),
    ],
)  # fmt: skip
def test_lanes_of_a_pool(lane: str, fit: bool) -> None:
    assert fits(lane, ("m",), "2", {"zone": "a"}) is fit
