"""Tables and plot of the cost-growth measurement."""

from pathlib import Path
from typing import Any

from cost_report import draw, markdown


def row(batch: int, context: int, seconds: float, threads: int = 2) -> dict[str, Any]:
    about = {"batch": batch, "context": context, "threads": threads}
    return about | {"step_seconds": seconds, "prefill_tokens_per_second": 1234.0}


RESULT: dict[str, Any] = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": {"cpu": "a CPU", "cpus": 2},
    "options": {"model": "m"},
    "batch": [row(1, 256, 0.005), row(5, 256, 0.009)],
    "context": [row(1, 1000, 0.005), row(1, 3000, 0.007), row(4, 1000, 0.009)],
    "threads": [row(1, 256, 0.008, 1), row(1, 256, 0.005, 2)],
    "queue": [{"waiting": 2000, "output_tokens_per_second": 345.6, "ttft_p95": 7.25}],
}


def test_growth_is_per_sequence_and_per_token_of_all() -> None:
    lines = markdown(RESULT).splitlines()
    assert "| 1 | 256 | 5.00 |  | 200 |" in lines
    assert "| 5 | 256 | 9.00 | 1.000 | 556 |" in lines
    assert "| 1 | 3000 | 7.00 | 1000 | 1,234 |" in lines
    assert "| 4 | 1000 | 9.00 |  | 1,234 |" in lines  # another batch starts anew
    assert "| 2 | 1 | 5.00 | 1,234 |" in lines
    assert "| 2000 | 346 | 7.2 |" in lines


def test_the_plot_is_written(tmp_path: Path) -> None:
    draw(RESULT, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("<path") > 20
