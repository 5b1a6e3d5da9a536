"""Tenants beside each other: sixteen that keep a fleet busy, and then one of them sends twenty times as much.

    python benchmarks/gateway/fairness.py

The others' time to the first token (p95) should stay within 1.3 times. The fleet is saturated all the time: in each round the equal load
runs on, and the flood begins in the middle of it; requests count by the phase in which they were sent. Replicas are `fakes.py`, slowed
down so that they, and not this machine, are the limit: the report says how much of it each process took.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from processor import processor_seconds
from routing import HEADRACE, RESULTS, process
from tenants import Load

HERE = Path(__file__).parent
FIRST_PORT, GATEWAY = 9200, 9199
REPLICAS, TENANTS, FACTOR = 4, 16, 20
#: Seconds of a load before it counts.
WARM_UP = 5.0


def p95(values: list[float]) -> float:
    """Seconds."""
    return statistics.quantiles(values, n=20)[-1]


async def one_round(
    load: Load, streams: int, seconds: float
) -> tuple[float, float, dict[str, int]]:
    """p95 of the others before and during the flood, and first tokens by tenant during it."""
    names = list(load.keys)
    tasks = [task for name in names for task in load.begin(name, streams)]
    await asyncio.sleep(WARM_UP)
    begin = time.monotonic()
    await asyncio.sleep(seconds)
    flood = time.monotonic()
    tasks += load.begin(names[0], (FACTOR - 1) * streams)
    await asyncio.sleep(seconds)
    end = time.monotonic()
    load.is_over = True
    await asyncio.gather(*tasks)
    times = load.times
    before, during = times.of(begin, flood, names[0]), times.of(flood, end, names[0])
    return p95(before), p95(during), times.served(flood, end)


def main() -> None:
    """Both loads in turn, and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    parser.add_argument("--streams", type=int, default=6, help="of each tenant")
    options = parser.parse_args()
    names = [f"t{number:02}" for number in range(TENANTS)]
    keys = {name: f"key-of-{name}" for name in names}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, str(HERE / "fakes.py"), "--count", str(REPLICAS)]
        command += ["--first-port", str(FIRST_PORT), "--max-sequences", "8", "--base", "0.03"]
        last = FIRST_PORT + REPLICAS - 1
        fakes = stack.enter_context(process(command, f"http://127.0.0.1:{last}/readyz"))
        lines = [f"gateway: {{port: {GATEWAY}, log_level: warning}}", "accounts:", "  keys:"]
        lines += [f"    - {{name: {name}, key: {key}}}" for name, key in keys.items()]
        lines += ["replicas:"]
        lines += [f'  - {{url: "http://127.0.0.1:{FIRST_PORT + n}"}}' for n in range(REPLICAS)]
        config = directory / "fleet.yaml"
        config.write_text("\n".join(lines) + "\n")
        url = f"http://127.0.0.1:{GATEWAY}"
        gateway = stack.enter_context(process([HEADRACE, "gateway", str(config)], f"{url}/readyz"))
        found: dict[str, list[float]] = {"equal": [], "flooded": []}
        pids = {"gateway": gateway.pid, "fakes": fakes.pid, "clients": os.getpid()}
        started, used = (
            time.monotonic(),
            {name: processor_seconds(pid) for name, pid in pids.items()},
        )
        for _ in range(options.rounds):
            load = Load(url, keys)
            equal, flooded, served = asyncio.run(one_round(load, options.streams, options.seconds))
            found["equal"].append(equal)
            found["flooded"].append(flooded)
            others = [count for name, count in served.items() if name != names[0]]
            print(
                f"p95 of the others {equal:.2f} s, in the flood {flooded:.2f} s; first tokens in the flood: "
                f"{served[names[0]]} of the flooder, {min(others)} to {max(others)} of the others",
                flush=True,
            )
        wall = time.monotonic() - started
        shares = {name: (processor_seconds(pid) - used[name]) / wall for name, pid in pids.items()}
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["flooded"] / medians["equal"]
    print(f"ratio of medians {ratio:.2f}")
    print("cores taken: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
    report = {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "p95": found,
        "ratio": ratio,
        "cores": shares,
        "of_cores": os.cpu_count(),
    }
    (RESULTS / "gateway-fairness.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
