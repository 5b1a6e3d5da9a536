"""Tenants beside each other: sixteen that keep a fleet busy, and then one of them sends twenty times as much.

    python benchmarks/gateway/fairness.py

The others' time to the first token (p95) should stay within 1.3 times. Replicas are `fakes.py`, slowed down so that they, and not
this machine, are the limit; the gateway is a real process. Both loads alternate.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from routing import HEADRACE, RESULTS, process

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.support.tenant_load import tenant_load  # noqa: E402

FIRST_PORT, GATEWAY = 9200, 9199
REPLICAS, TENANTS = 4, 16


def main() -> None:
    """Both loads in turn, and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--streams", type=int, default=6, help="of each tenant")
    options = parser.parse_args()
    names = [f"t{number:02}" for number in range(TENANTS)]
    keys = {name: f"key-of-{name}" for name in names}
    equal = dict.fromkeys(names, options.streams)
    flooded = {**equal, names[0]: 20 * options.streams}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fakes = [sys.executable, str(HERE / "fakes.py"), "--count", str(REPLICAS)]
        fakes += ["--first-port", str(FIRST_PORT), "--max-sequences", "8", "--base", "0.03"]
        last = FIRST_PORT + REPLICAS - 1
        stack.enter_context(process(fakes, f"http://127.0.0.1:{last}/readyz"))
        lines = [f"gateway: {{port: {GATEWAY}, log_level: warning}}", "accounts:", "  keys:"]
        lines += [f"    - {{name: {name}, key: {key}}}" for name, key in keys.items()]
        lines += ["replicas:"]
        lines += [f'  - {{url: "http://127.0.0.1:{FIRST_PORT + n}"}}' for n in range(REPLICAS)]
        config = directory / "fleet.yaml"
        config.write_text("\n".join(lines) + "\n")
        url = f"http://127.0.0.1:{GATEWAY}"
        stack.enter_context(process([HEADRACE, "gateway", str(config)], f"{url}/readyz"))
        found: dict[str, list[float]] = {"equal": [], "flooded": []}
        for _ in range(options.rounds):
            for name, streams in (("equal", equal), ("flooded", flooded)):
                times = asyncio.run(
                    tenant_load(url, keys, streams=streams, seconds=options.seconds, model="fake")
                )
                found[name].append(times.p95(names[0]))
                print(f"{name:8} p95 of the others {found[name][-1]:.2f} s", flush=True)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["flooded"] / medians["equal"]
    print(f"ratio of medians {ratio:.2f}")
    report = {"at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "p95": found, "ratio": ratio}
    (RESULTS / "gateway-fairness.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
