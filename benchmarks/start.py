"""From exec to the first 200 of /readyz: wall time, and CPU time of all its processes until then.

CPU time says what a start costs whatever else the machine does; the first start is left out (it fills caches).

python benchmarks/start.py [--model smollm2-135m] [--rounds 5]
"""

import argparse
import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def is_ready(port: int) -> bool:
    """Whether /readyz answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / TICKS
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_seconds(int(child)) for child in children)


def start(model: str) -> tuple[float, float]:
    """One start: seconds until ready, CPU seconds until then."""
    port = free_port()
    command = [sys.executable, "-m", "headrace.cli.main", "serve", model, "--port", str(port)]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            if server.poll() is not None or time.perf_counter() - began > 120:
                raise SystemExit("The server does not become ready.")
            time.sleep(0.005)
        return time.perf_counter() - began, cpu_seconds(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    start(args.model)
    walls, cpus = zip(*(start(args.model) for _ in range(args.rounds)), strict=True)
    load = os.getloadavg()[0]
    print(f"wall {statistics.median(walls):6.3f} s  (least {min(walls):.3f}, load {load:.1f})")
    print(f"cpu  {statistics.median(cpus):6.3f} s  (least {min(cpus):.3f})")


if __name__ == "__main__":
    main()
