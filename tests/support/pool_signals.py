"""Signals of a pool that tests change one thing of."""

from typing import Any

from headrace.fleet.autoscaler.values import Signals


def signals(**changes: Any) -> Signals:
    """Two busy replicas that all report: 8 slots each, half of them used, nothing waiting, 100 tokens/s coming in."""
    usual: dict[str, Any] = {
        "at": 1000.0,
        "window": 60.0,
        "num_ready": 2,
        "num_pending": 0,
        "num_warm": 0,
        "num_reporting": changes.get("num_ready", 2),
        "num_running": 8,
        "slots": 16,
        "kv_usage": 0.3,
        "incoming_tokens_per_second": 100.0,
        "arrivals_per_second": 2.0,
        "input_tokens": 100.0,
        "output_tokens": 30.0,
        "idle_seconds": 0.0,
    }
    return Signals(**{**usual, **changes})


def nothing_told(**changes: Any) -> Signals:
    """Two replicas of which nothing is known."""
    usual: dict[str, Any] = {
        "at": 1000.0, "window": 60.0, "num_ready": 2, "num_pending": 0, "num_warm": 0,
        "num_reporting": 0,
    }  # fmt: skip
    return Signals(**{**usual, **changes})


def idle(seconds: float, **changes: Any) -> Signals:
    """Nothing has come for so long, and that is known."""
    quiet = {
        "num_running": 0, "kv_usage": 0.0, "incoming_tokens_per_second": 0.0, "arrivals_per_second": 0.0,
        "input_tokens": None, "output_tokens": None, "idle_seconds": seconds,
    }  # fmt: skip
    return signals(**{**quiet, **changes})
