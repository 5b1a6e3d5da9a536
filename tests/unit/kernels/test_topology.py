from pathlib import Path

import pytest

from headrace.kernels import topology

GIB = 1 << 30


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"}


def test_a_bare_machine_gives_all_it_has(tmp_path):
    found = topology.detect(_write(tmp_path, MEMINFO), frozenset(range(4)))
    assert (found.num_cpus, found.num_cores, found.cpu_quota) == (4, 4, None)
    assert found.num_threads == 4
    assert (found.memory_total, found.memory_available) == (16 * GIB, 8 * GIB)


def test_hyperthreads_count_as_one_core(tmp_path):
    base = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {base.format(cpu): f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)}
    root = _write(tmp_path, MEMINFO | siblings)
    assert topology.detect(root, frozenset(range(4))).num_threads == 2
    assert topology.detect(root, frozenset({0, 2})).num_threads == 1
    assert topology.detect(root, frozenset({0, 1})).num_threads == 2


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 8)],
)
def test_version_2_quota_bounds_threads(tmp_path, quota, threads):
    files = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/box/cpu.max": quota}
    found = topology.detect(_write(tmp_path, MEMINFO | files), frozenset(range(8)))
    assert found.num_threads == threads


def test_the_tightest_parent_counts(tmp_path):
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000",
        "sys/fs/cgroup/pod/box/cpu.max": "max 100000",
        "sys/fs/cgroup/pod/memory.max": str(4 * GIB),
        "sys/fs/cgroup/pod/memory.current": str(3 * GIB),
        "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        "sys/fs/cgroup/pod/box/memory.max": "max",
    }
    found = topology.detect(_write(tmp_path, MEMINFO | files), frozenset(range(8)))
    assert found.cpu_quota == 3.0
    assert (found.memory_total, found.memory_available) == (4 * GIB, 2 * GIB)


def test_version_1_files_are_read(tmp_path):
    files = {
        "proc/self/cgroup": "9:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/\n",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(3 * GIB),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
    }
    found = topology.detect(_write(tmp_path, MEMINFO | files), frozenset(range(8)))
    assert found.cpu_quota == 2.5
    assert (found.memory_total, found.memory_available) == (2 * GIB, 0)


def test_a_container_sees_its_group_at_the_mount(tmp_path):
    files = {
        "proc/self/cgroup": "0::/../../kubepods/pod1\n",
        "sys/fs/cgroup/cpu.max": "100000 100000",
    }
    assert topology.detect(_write(tmp_path, MEMINFO | files), frozenset(range(8))).num_threads == 1


@pytest.mark.parametrize("text", ["", "garbage", "100000 0", "\x00\xff", "1e5 100000"])
def test_unreadable_files_limit_nothing(tmp_path, text):
    files = {"proc/self/cgroup": "0::/\nnonsense\n", "sys/fs/cgroup/cpu.max": text}
    found = topology.detect(_write(tmp_path, files), frozenset({0, 5}))
    assert found.num_threads == 2
    assert found.memory_available > 0


def test_this_machine_can_be_read():
    found = topology.detect()
    assert 1 <= found.num_threads <= found.num_cpus
    assert 0 < topology.available_memory() <= found.memory_total
