"""Processor time and memory of processes, and what devices say, as metrics. Read when the page is."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from headrace.observe import system_metrics as table
from headrace.observe.gpus import Gpus
from headrace.observe.metrics import Metrics


class ProcessUse(NamedTuple):
    """What a process has used."""

    cpu_seconds: float
    memory: int
    """Bytes in RAM."""
    threads: int


class Watched(NamedTuple):
    """A process to tell of."""

    process: str
    """server, engine or gateway."""
    pid: int | None
    model: str = ""
    """Of an engine."""


class SystemMeter:
    """The part of a metrics page that the operating system knows."""

    def __init__(self, metrics: Metrics, gpus: Gpus | None = None) -> None:
        self._metrics = metrics
        self._gpus = gpus or Gpus()

    def write(self, processes: Iterable[Watched]) -> None:
        """Bring the page up to date; processes that are not there are left as they were last."""
        put = self._metrics.set
        for process, pid, model in processes:
            use = None if pid is None else use_of(pid)
            if use is None:
                continue
            put(table.PROCESS_CPU, (model, process), use.cpu_seconds)
            put(table.PROCESS_MEMORY, (model, process), use.memory)
            put(table.PROCESS_THREADS, (model, process), use.threads)
        put(table.CPUS, (), len(os.sched_getaffinity(0)))
        for gpu in self._gpus.read():
            for metric, value in (
                (table.GPU_USE, gpu.utilization),
                (table.GPU_MEMORY_USED, gpu.memory_used),
                (table.GPU_MEMORY_TOTAL, gpu.memory_total),
                (table.GPU_TEMPERATURE, gpu.temperature),
                (table.GPU_POWER, gpu.power),
                (table.GPU_THROTTLED, gpu.is_throttled),
            ):
                if value is not None:
                    put(metric, (str(gpu.index),), float(value))


def use_of(pid: int) -> ProcessUse | None:
    """Of a process of this machine (Linux); None where it is gone, or not ours to see."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name, in parentheses, may hold anything; what follows begins with field 3 (man 5 proc).
        fields = stat.rpartition(")")[2].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        return ProcessUse(
            cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
            memory=pages * os.sysconf("SC_PAGE_SIZE"),
            threads=int(fields[17]),
        )
    except (OSError, ValueError, IndexError):
        return None
