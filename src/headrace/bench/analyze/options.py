"""What `headrace analyze` can be told."""

from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.secret import Secret


class AnalyzeOptions(Struct, frozen=True, kw_only=True):
    """How long to look, and what to take for granted."""

    model: str | None = None
    """Model to ask; default the first that the server lists."""
    api_key: Secret | None = None
    """Key sent as a bearer token; default the variable OPENAI_API_KEY. A gateway's metrics take an operator's key too."""
    seconds: Annotated[float, Meta(ge=1, le=3600, extra={"unit": "seconds"})] = 10.0
    """How long the server's own traffic is watched, before the probe."""
    probe: bool = True
    """Ask a few requests of our own; without them less is known."""
    batch: Annotated[int, Meta(ge=2, le=256)] = 8
    """Streams of the probe that run at once."""
    prompt_words: Annotated[int, Meta(ge=32, le=100_000)] = 512
    """Length of the probe's long prompt."""
    memory_bandwidth: Annotated[float, Meta(gt=0)] | None = None
    """Billions of bytes a second that the server's machine can read; default measured, if it is this one."""
    compute: Annotated[float, Meta(gt=0)] | None = None
    """Billions of operations a second, in the arithmetic of its weights; default measured, if it is this one."""
    json: bool = False
    """Print the whole analysis as JSON."""
