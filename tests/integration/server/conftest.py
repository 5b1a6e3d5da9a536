"""One server for all tests that leave it as they found it."""

import httpx
import pytest
from tests.support.fake_server import FakeServer


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with FakeServer(tmp_path_factory.mktemp("server"), engine={"max_num_seqs": 64}) as running:
        yield running


@pytest.fixture(scope="session")
def http(server):
    with httpx.Client(base_url=server.url) as client:
        yield client
