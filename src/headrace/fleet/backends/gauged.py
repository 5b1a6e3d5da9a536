"""Servers whose load stands in a Prometheus text: one reader, a table of names each."""

from typing import ClassVar

from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.prometheus import Aliases, gauges
from headrace.fleet.backends.values import Load

RUNNING, WAITING, USAGE, MAX_RUNNING = "num_running", "num_waiting", "kv_usage", "max_running"


class GaugedBackend(OpenAIBackend):
    """`aliases` names the gauges, newest name first; those in `optional` are not missed."""

    health_path: ClassVar[str | None] = "/health"
    load_path: ClassVar[str | None] = "/metrics"
    aliases: ClassVar[Aliases] = {}
    optional: ClassVar[frozenset[str]] = frozenset()

    def read_load(self, status: int, body: bytes) -> Load:
        """Engines behind one address are added up; of their KV usages the highest counts."""
        text = body.decode(errors="replace") if status == 200 else ""
        found = gauges(text, self.aliases, largest=frozenset({USAGE}))
        usage = found.get(USAGE)
        return Load(
            num_running=_whole(found.get(RUNNING)),
            num_waiting=_whole(found.get(WAITING)),
            kv_usage=None if usage is None else min(1.0, max(0.0, usage)),
            max_running=_whole(found.get(MAX_RUNNING)) or None,
            missing=tuple(n for n in self.aliases if n not in found and n not in self.optional),
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else max(0, int(value))
