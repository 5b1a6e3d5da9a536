"""A gateway over replicas that keep responses."""

import contextlib

from tests.support.in_process_gateway import gateway_over, quick, spec_of
from tests.support.keeping_replica import KeepingReplica


@contextlib.asynccontextmanager
async def keepers(count):
    made = [await KeepingReplica().start() for _ in range(count)]
    try:
        yield made
    finally:
        for replica in made:
            await replica.kill()


def over(fakes, accounts=None):
    fields = {} if accounts is None else {"accounts": accounts}
    return gateway_over(fakes, quick([spec_of(fake) for fake in fakes], **fields))
