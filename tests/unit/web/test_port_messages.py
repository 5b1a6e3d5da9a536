"""A port that is taken."""

import pytest

from headrace.core.errors import ConfigError
from headrace.web.port import bind


def test_a_port_in_use_names_the_setting_that_chooses_another():
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} .* with --port"):
            bind("127.0.0.1", port)
        with pytest.raises(ConfigError, match=f"Port {port} .* with gateway.port"):
            bind("127.0.0.1", port, setting="gateway.port")
