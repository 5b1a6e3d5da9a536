"""Routes are closed to strangers unless they are listed; the list names only routes that exist."""

from headrace.config.server import ServerConfig
from headrace.core.clock import SystemClock
from headrace.observe.metrics import Metrics
from headrace.server.app import build_routes
from headrace.server.auth import PUBLIC_PATHS, is_public
from headrace.server.replica import Replica


def test_only_probes_are_public():
    replica = Replica(ServerConfig(), SystemClock(), Metrics())
    replica.workers.close()
    paths = {route.path for route in build_routes(replica)}
    assert paths >= PUBLIC_PATHS
    assert {path for path in paths if is_public(path)} == {"/livez", "/readyz", "/health"}
    assert not is_public("/livez/")
    assert not is_public("/anything")
