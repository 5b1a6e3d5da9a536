"""What Python and HTTP cost beside the kernels: CPU time by process while clients stream from a real server.

The share is of what the machine has (cores times wall time): the CPU of the HTTP process, and the wall time in
which the engine's thread is not inside model and sampling. The latter is a bound from above: it holds the waits at
the beginning and the end too. The clients run on the same cores; their own cost is left out.

    python benchmarks/serving/python_share.py [--clients 16] [--requests 96]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from headrace.cli.local_server import local_server

TICKS = os.sysconf("SC_CLK_TCK")
HEADRACE = [sys.executable, "-P", "-m", "headrace"]


def cpu_of(stat: Path) -> float:
    """CPU seconds of a process or thread, by its stat file."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def phase_seconds(url: str) -> dict[str, float]:
    """Seconds of all steps so far, by phase."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    pattern = r'^headrace_step_phase_seconds_total\{[^}]*phase="(\w+)"[^}]*\} (\S+)$'
    return {name: float(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


def take(url: str, server: int, engine: int) -> dict[str, float]:
    """Counters now."""
    return {
        "wall": time.perf_counter(),
        "HTTP process": cpu_of(Path(f"/proc/{server}/stat")),
        "engine process": cpu_of(Path(f"/proc/{engine}/stat")),
        **phase_seconds(url),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=96)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with local_server([args.model], ready_timeout=120.0) as server:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        tasks = Path(f"/proc/{server.pid}/task").iterdir()
        children += [c for task in tasks for c in (task / "children").read_text().split()]
        engine = int(children[0])
        load = [*HEADRACE, "bench", "--url", server.url, "--json", "-"]
        load += ["--concurrency", str(args.clients), "--input-words", "256"]
        load += ["--output-tokens", "128"]

        def run(count: int) -> float:
            command = [*load, "--num-requests", str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rate: float = json.loads(done.stdout)["runs"][0]["output_tokens_per_second"]
            return rate

        run(args.clients)
        before = take(server.url, server.pid, engine)
        rate = run(args.requests)
        after = take(server.url, server.pid, engine)
    spent = {name: after[name] - before[name] for name in after if name in before}
    machine = cores * spent["wall"]
    kernels = spent["model"] + spent["sample"]
    python = spent["wall"] - kernels
    tokens = args.requests * 128
    for name, seconds in spent.items():
        print(f"{name:16s} {seconds:8.2f} s")
    print(f"output           {rate:8.1f} tok/s at {args.clients} clients")
    print(f"HTTP             {1e6 * spent['HTTP process'] / tokens:8.0f} us a token")
    print(f"HTTP             {100 * spent['HTTP process'] / machine:8.1f} % of {cores} cores")
    print(f"engine's Python  {100 * python / machine:8.1f} %")
    print(f"together         {100 * (spent['HTTP process'] + python) / machine:8.1f} %")


if __name__ == "__main__":
    main()
