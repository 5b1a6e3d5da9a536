"""uvicorn, bounded: how both HTTP servers are put together and run."""

import contextlib
import logging
import resource
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.config import Config

from headrace.config.security import SecurityConfig
from headrace.web.asgi import App
from headrace.web.protocol import BoundedHttpProtocol, ConnectionBounds
from headrace.web.tls import tls_context

#: Seconds that an idle connection is kept: more than the 60 s for which proxies keep theirs.
KEEP_ALIVE = 75
#: Seconds for the last bytes of answers that were ended by a drain.
FLUSH_SECONDS = 5

log = logging.getLogger("headrace.web")


class HttpServer(uvicorn.Server):
    """uvicorn's server; signals are ours, because a drain must go on answering probes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's, which stops listening at the first signal."""
        yield


def http_config(
    app: App, bounds: ConnectionBounds, security: SecurityConfig, **options: Any
) -> Config:
    """Uvicorn's settings. `options` are further ones of uvicorn's, for WebSockets."""
    protocol: Any = partial(BoundedHttpProtocol, bounds=bounds)
    made = Config(
        cast("Any", app),
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=FLUSH_SECONDS,
        **options,
    )
    made.load()
    made.ssl = tls_context(security)
    return made


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files where it is lower, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count or soft == resource.RLIM_INFINITY:
        return
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < count:
        log.warning("Only %d files may be open; max_connections is meant for %d", wanted, count)
