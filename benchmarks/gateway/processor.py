"""Processor time of other processes, from Linux' /proc."""

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """User and system time that a process, all of its threads, has had so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
