"""What a metric is, and the buckets of those that are distributions."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


# Compared by identity: each is declared once, and looked up for every request.
@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One family. Names are in base units; counters end in `_total`."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    """Beside `model`, which every family has unless it is `server_wide`."""
    buckets: tuple[float, ...] = ()
    vllm: tuple[str, ...] = ()
    genai: str = ""
    """Its name in OpenTelemetry's conventions for generative AI; `genai_names.py` serves it."""
    genai_labels: tuple[tuple[str, str], ...] = ()
    """Attributes that it has there beside its labels."""
    server_wide: bool = False

    @property
    def bounds(self) -> tuple[float, ...]:
        """Of the buckets that are counted: ours, and those of the conventions where it has a name there."""
        return tuple(sorted({*self.buckets, *self.genai_buckets}))

    @property
    def genai_buckets(self) -> tuple[float, ...]:
        """Buckets under that name; empty without one."""
        if not self.genai:
            return ()
        return next((b for end, b in GENAI_BUCKETS if self.genai.endswith(end)), GENAI_DURATION)


# OpenTelemetry's advice for metrics of generative AI (semantic-conventions-genai, 2026-04).
GENAI_DURATION = tuple(0.01 * 2**n for n in range(14))
GENAI_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
GENAI_TPOT = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
GENAI_TOKENS = tuple(float(4**n) for n in range(14))
#: By how a name ends; all others are durations.
GENAI_BUCKETS = (
    ("token.usage", GENAI_TOKENS),
    ("time_to_first_token", GENAI_TTFT),
    ("time_to_first_chunk", GENAI_TTFT),
    ("time_per_output_token", GENAI_TPOT),
    ("time_per_output_chunk", GENAI_TPOT),
)

#: Seconds, from a fast first token on a small model to a long queue.
LATENCY = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
#: Seconds between tokens: fine where decoding happens, from 100 µs on.
INTERVAL = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05,
    0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
#: Seconds of a whole request.
DURATION = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)  # fmt: skip
TOKENS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0,
)  # fmt: skip
STEP_TOKENS = (
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
)  # fmt: skip
