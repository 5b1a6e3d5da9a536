"""A reload says which settings it did not take over."""

import pytest

from headrace.config.fleet.cache import CacheConfig
from headrace.config.fleet.gateway import GatewayConfig, TimeoutConfig
from headrace.config.fleet.restart import needing_start
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret


@pytest.mark.parametrize(
    ("new", "names"),
    [
        (FleetConfig(), []),
        (FleetConfig(gateway=GatewayConfig(timeouts=TimeoutConfig(total=1.0))), []),
        (FleetConfig(gateway=GatewayConfig(admin_keys=Secret("k"))), ["gateway.admin_keys"]),
        (
            FleetConfig(gateway=GatewayConfig(max_body_bytes=2048, log_level="debug")),
            ["gateway.max_body_bytes", "gateway.log_level"],
        ),
        (FleetConfig(cache=CacheConfig(namespace="other")), ["cache"]),
    ],
)
def test_what_needs_a_start(new, names):
    assert needing_start(FleetConfig(), new) == names
