"""What an operator asks for and cannot have is refused in one sentence."""

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.tiny_models import make_tiny_llama

from headrace.config.engine import EngineConfig, ModelConfig
from headrace.core.errors import ConfigError
from headrace.engine.build import build_engine


def test_a_longer_context_than_the_model_has_is_refused(tmp_path):
    make_tiny_llama(tmp_path / "tiny")
    model = ModelConfig(model=str(tmp_path / "tiny"), max_context=999_999, cache_packed=False)
    with pytest.raises(ConfigError, match=r"--max-context 999999 .* context of \d+ tokens"):
        build_engine(EngineConfig(model=model), FakeClock(), lambda phase: None)
