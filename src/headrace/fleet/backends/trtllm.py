"""`trtllm-serve`: OpenAI's routes, `/health`, and `/metrics` as JSON: statistics of the last iterations."""

from typing import Any, ClassVar

from headrace.config.fleet.replicas import Dialect
from headrace.fleet.backends import reading
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.values import Load


class TrtLlmBackend(OpenAIBackend):
    """Reading `/metrics` empties its queue, so an idle server answers with nothing: that is unknown, not 0."""

    dialect: ClassVar = Dialect.TRTLLM
    keeps_responses: ClassVar = True
    health_path: ClassVar = "/health"
    load_path: ClassVar = "/metrics"

    def read_load(self, status: int, body: bytes) -> Load:
        """The last iteration counts."""
        said = reading.decode(body) if status == 200 else None
        rounds = list(reading.tables(said))
        if not rounds:
            # An empty list is what it says when nothing ran since the last question.
            return Load(missing=() if isinstance(said, list) else ("num_running", "num_waiting"))
        last = rounds[-1]
        return Load(
            num_running=reading.count(last.get("numActiveRequests")),
            num_waiting=reading.count(last.get("numQueuedRequests")),
            kv_usage=_usage(reading.table(last.get("kvCacheStats"))),
            max_running=reading.count(last.get("maxNumActiveRequests")) or None,
            missing=tuple(
                ours
                for ours, theirs in (
                    ("num_running", "numActiveRequests"),
                    ("num_waiting", "numQueuedRequests"),
                )
                if reading.count(last.get(theirs)) is None
            ),
        )


def _usage(stats: dict[str, Any]) -> float | None:
    used, blocks = (
        reading.share(stats.get("usedNumBlocks")),
        reading.share(stats.get("maxNumBlocks")),
    )
    if blocks is None and used is not None:
        free = reading.share(stats.get("freeNumBlocks"))
        blocks = None if free is None else used + free
    return min(1.0, used / blocks) if used is not None and blocks else None
