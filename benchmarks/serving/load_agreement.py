"""`headrace bench` beside another load generator on one server: do their figures agree?

    python benchmarks/serving/load_agreement.py loadgen.py [--clients 1 4 16] [--rounds 3]
    python benchmarks/serving/load_agreement.py loadgen.py --stub     streams of a fixed pace: what the two alone add

The other generator is a script that takes `URL MODEL --conc N --n N --in WORDS --out TOKENS --seed N` and prints one
JSON object with out_tps, ttft_p50, tpot_p50 and itl_p95 (milliseconds). The two take turns, each first in every other
round, with prompts that nobody has sent before; the medians of the rounds are compared.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from headrace.cli.local_server import local_server

HEADRACE = [sys.executable, "-P", "-m", "headrace"]
WORDS, TOKENS = 256, 128

Figures = dict[str, float]


def ours(url: str, clients: int, requests: int, extra: Sequence[str]) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        command = [*HEADRACE, "bench", "--url", url, "--concurrency", str(clients)]
        command += ["--num-requests", str(requests), "--seed", str(random.getrandbits(30))]
        command += ["--input-words", str(WORDS), "--output-tokens", str(TOKENS), *extra]
        subprocess.run([*command, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
        (run,) = json.loads(path.read_text())["runs"]
    return {
        "output tok/s": run["output_tokens_per_second"],
        "TTFT p50, ms": 1e3 * run["ttft"]["p50"],
        "TPOT p50, ms": 1e3 * run["tpot"]["p50"],
        "ITL p95, ms": 1e3 * run["itl"]["p95"],
    }


def theirs(
    script: str, url: str, model: str, clients: int, requests: int, extra: Sequence[str]
) -> Figures:
    command = [
        sys.executable,
        script,
        url,
        model,
        *extra,
        "--conc",
        str(clients),
        "--n",
        str(requests),
    ]
    command += ["--in", str(WORDS), "--out", str(TOKENS), "--seed", str(random.getrandbits(30))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return {
        "output tok/s": row["out_tps"],
        "TTFT p50, ms": row["ttft_p50"],
        "TPOT p50, ms": row["tpot_p50"],
        "ITL p95, ms": row["itl_p95"],
    }


@contextmanager
def target(options: argparse.Namespace) -> Iterator[str]:
    """The URL of the server, until the block ends."""
    if not options.stub:
        with local_server([options.model], ready_timeout=120.0) as server:
            yield server.url
        return
    stub = Path(__file__).parents[1] / "gateway" / "stub.py"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    child = subprocess.Popen([sys.executable, str(stub), "--port", str(port), "--interval", "0.01"])
    try:
        time.sleep(2.0)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


def compare(options: argparse.Namespace, url: str, clients: int) -> tuple[Figures, Figures]:
    """Medians of both, ours first."""
    requests = max(8, 3 * clients)
    model, extra = ("stub", ["--chat"]) if options.stub else (options.model, [])
    found: tuple[list[Figures], list[Figures]] = ([], [])
    for number in range(options.rounds):
        for who in (0, 1) if number % 2 == 0 else (1, 0):
            found[who].append(
                theirs(options.script, url, model, clients, requests, extra)
                if who
                else ours(url, clients, requests, extra)
            )
    mine, other = ({name: median(one[name] for one in some) for name in some[0]} for some in found)
    return mine, other


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", help="the other load generator")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| clients | figure | headrace bench | other | ratio |\n|--:|---|--:|--:|--:|")
    with target(options) as url:
        for clients in options.clients:
            mine, other = compare(options, url, clients)
            for name, value in mine.items():
                ratio = f"{value / other[name]:.3f}" if other[name] else "–"
                print(f"| {clients} | {name} | {value:.1f} | {other[name]:.1f} | {ratio} |")


if __name__ == "__main__":
    main()
