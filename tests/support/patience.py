"""How long tests wait for what must come. A machine with other work is slow, and that fails no test."""

PATIENCE = 120.0
"""Seconds. Long beyond need: whoever waits goes on as soon as what it waits for is there."""


def make_httpx_patient() -> None:
    """Let requests that name no time limit of their own wait as long, instead of httpx's five seconds."""
    import httpx  # here: children that read PATIENCE start without it

    httpx._config.DEFAULT_TIMEOUT_CONFIG.__dict__.update(httpx.Timeout(PATIENCE).__dict__)
