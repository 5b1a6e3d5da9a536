"""How much of this machine is ours: CPUs from affinity and cgroup quota, memory from cgroup and kernel.

Reads files under `root`, so that tests can lay out a machine in a directory.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True, slots=True)
class Topology:
    """What a process may use."""

    num_cpus: int
    """CPUs of the affinity mask."""
    num_cores: int
    """Physical cores behind those CPUs."""
    cpu_quota: float | None
    """CPUs' worth of time that the cgroups allow; None is no limit."""
    memory_total: int
    """Bytes of the machine, or of the tightest cgroup."""
    memory_available: int
    """Bytes that can be taken now without swapping."""

    @property
    def num_threads(self) -> int:
        """Compute threads: one per core, as many as the quota pays for, at least one."""
        if self.cpu_quota is None:
            return self.num_cores
        return max(1, min(self.num_cores, int(self.cpu_quota)))


def detect(root: Path = Path("/"), cpus: frozenset[int] | None = None) -> Topology:
    """The machine as this process may use it; `cpus` replaces the affinity mask."""
    mask = _affinity() if cpus is None else cpus
    total, available = _memory(root)
    limits = [limit for limit in (_cpu_limit(group) for group in _groups(root, "cpu")) if limit]
    for group in _groups(root, "memory"):
        limit, used = _memory_limit(group)
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return Topology(
        num_cpus=len(mask),
        num_cores=_count_cores(root, mask),
        cpu_quota=min(limits, default=None),
        memory_total=total,
        memory_available=available,
    )


def available_memory() -> int:
    """Bytes that can be taken now without swapping."""
    return detect().memory_available


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _count_cores(root: Path, cpus: frozenset[int]) -> int:
    """CPUs that are hyperthreads of one core count once."""
    base = root / "sys/devices/system/cpu"
    siblings = {_read(base / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    return max(1, len(siblings))


def _memory(root: Path) -> tuple[int, int]:
    """(total, available) of the machine, in bytes."""
    fields = {}
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) * 1024
    total = fields.get("MemTotal", _UNLIMITED)
    return total, fields.get("MemAvailable", total)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's cgroup for the controller, from its own up to the root.

    Inside a container the path that /proc names may not be mounted; the mount's root then is the group.
    """
    base = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            top = base
        elif controller in controllers.split(","):
            top = next((p for p in (base / controllers, base / controller) if p.is_dir()), base)
        else:
            continue
        parts = [part for part in name.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            group = top.joinpath(*parts[:depth])
            if group.is_dir():
                yield group


def _cpu_limit(group: Path) -> float | None:
    """CPUs' worth of time; None without a limit. Version 2 has cpu.max, version 1 two files."""
    quota, _, period = (_read(group / "cpu.max") or "").partition(" ")
    if not quota:
        quota = _read(group / "cpu.cfs_quota_us") or ""
        period = _read(group / "cpu.cfs_period_us") or ""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" or "-1"
    return int(quota) / int(period)


def _memory_limit(group: Path) -> tuple[int, int]:
    """(limit, bytes in use that cannot be dropped). File cache that is idle can be dropped."""
    limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes") or ""
    used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes") or ""
    if not limit.isdigit() or int(limit) >= _UNLIMITED:
        return _UNLIMITED, 0
    droppable = 0
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            droppable = max(droppable, int(value))
    return int(limit), max(0, (int(used) if used.isdigit() else 0) - droppable)


def _read(path: Path) -> str | None:
    """The text of a small file; None when it is absent, unreadable or empty."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
