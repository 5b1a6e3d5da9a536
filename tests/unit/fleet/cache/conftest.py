"""For tests of caches."""

import pytest
from tests.support.patience import PATIENCE

from headrace.fleet.cache import sqlite_store


@pytest.fixture(autouse=True)
def _patience_with_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "_PATIENCE", PATIENCE)
