"""A store of models that nobody else uses."""

import pytest

from headrace.modeling.weights.sources.store import ModelStore


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models")
