"""A request that has ended is gone at once: none of it waits for the garbage collector, which stops the whole gateway."""

import gc

import pytest
from tests.support.fake_replica import replicas
from tests.support.in_process_gateway import gateway_over

from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.dispatch import Dispatch
from headrace.fleet.gateway.order import Order

PARTS = (Call, Dispatch, Order)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_ended_request_leaves_no_circle(is_stream):
    async with replicas(1) as fakes, gateway_over(fakes) as gateway:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                call = gateway.call(max_tokens=2, stream=is_stream)
                assert (await call.end()).status == 200
                del call
            await gateway.check_idle()
            left = [type(found).__name__ for found in gc.get_objects() if type(found) in PARTS]
        finally:
            gc.enable()
        assert left == []
