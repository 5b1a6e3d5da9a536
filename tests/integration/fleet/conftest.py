"""What tests of a fleet share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import redis_server


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis of the file's own."""
    with (
        tempfile.TemporaryDirectory(prefix="hr-") as directory,
        redis_server(Path(directory)) as url,
    ):
        yield url
