"""Orders that the fleet gives a real server process, by HTTP."""

import pytest
from tests.support.fake_server import FakeServer, fake_source

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.core.errors import DriverError
from headrace.core.stats import ReplicaState
from headrace.fleet import control
from headrace.fleet.upstream.pool import Pool, address_of

TOKEN = "not for everybody"


async def test_a_warm_replica_is_given_a_model_parked_woken_and_emptied(tmp_path):
    with FakeServer(
        tmp_path, hosting={"start": "empty"}, security={"control_token": TOKEN}
    ) as server:
        pool = Pool(address_of(server.url), TimeoutConfig(), max_idle=1, max_buffer=65536)
        source = fake_source(server.tokenizer)
        loaded = await control.load(
            pool, TOKEN, source, names=("mine",), settings={"max_context": 64}
        )
        assert (loaded.model, loaded.state) == ("mine", ReplicaState.READY)
        assert (await control.park(pool, TOKEN, grace=1)).state is ReplicaState.PARKED
        assert (await control.unpark(pool, TOKEN)).state is ReplicaState.READY
        assert (await control.drain(pool, TOKEN, grace=1)).state is ReplicaState.DRAINING
        assert (await control.unload(pool, TOKEN, grace=1)).state is ReplicaState.EMPTY
        broken = fake_source(server.tokenizer, fail_start="No such tensor type.")
        with pytest.raises(DriverError, match="No such tensor type"):
            await control.load(pool, TOKEN, broken)
        with pytest.raises(DriverError, match="403"):
            await control.park(pool, "wrong", grace=0)
        pool.close()
        server.close()
        with pytest.raises(DriverError, match="was not told to park"):
            await control.park(pool, TOKEN, grace=0)
