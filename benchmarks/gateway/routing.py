"""Routing policies on one recorded trace: how much of the prompts was cached, time to the first token, throughput.

    python benchmarks/gateway/routing.py --trace mooncake_conversation.jsonl --fleet fakes
    python benchmarks/gateway/routing.py --trace mooncake_synthetic.jsonl --fleet real --sessions 16 --speed 16 --scale 0.03
    python benchmarks/gateway/routing.py --fleet fakes --no-reuse       prompts that share nothing

`fakes`: 50 of `fakes.py`. `real`: four `headrace serve` of one thread each. Lengths are scaled down and arrivals sped
up so that the fleet is busy without a cache.
A small fleet takes every so manieth session of the trace (`--sessions`), so that what a request shares with earlier ones stays.
The trace's block ids become text, so that shared blocks are shared text (`headrace bench --trace`). Every policy gets
the same requests in turn, against replicas that were just started.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEADRACE = str(Path(sys.executable).with_name("headrace"))
RESULTS = HERE.parent / "results"
POLICIES = ("round_robin", "least_requests", "least_outstanding_tokens", "prefix_aware", "sticky")
FIRST_PORT = 9000
GATEWAY_PORT = 8995


@contextmanager
def process(
    command: Sequence[str], ready: str, seconds: float = 60.0
) -> Iterator[subprocess.Popen[bytes]]:
    """A child until the block ends; it is ready when the URL `ready` answers 200, which nobody may do before."""
    if answers(ready):
        raise SystemExit(f"Something answers {ready} already; end it first.")
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            end = time.monotonic() + seconds
            while not answers(ready):
                if child.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    raise SystemExit(
                        f"{command[0]} did not start:\n{output.read().decode()[-2000:]}"
                    )
                time.sleep(0.1)
            yield child
        finally:
            child.terminate()
            child.wait()


def answers(url: str) -> bool:
    """It answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def fetch(url: str) -> Any:
    """JSON."""
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.load(response)


def fleet(options: argparse.Namespace, stack: ExitStack) -> list[int]:
    """Start the replicas; their ports."""
    if options.fleet == "fakes":
        ports = [FIRST_PORT + n for n in range(options.count or 50)]
        command = [sys.executable, str(HERE / "fakes.py"), "--count", str(len(ports))]
        command += ["--first-port", str(FIRST_PORT)]
        stack.enter_context(process(command, f"http://127.0.0.1:{ports[-1]}/readyz"))
        return ports
    ports = [FIRST_PORT + n for n in range(options.count or 4)]
    for port in ports:
        command = [HEADRACE, "serve", options.model, "--port", str(port), "--threads", "1"]
        command += ["--kv-memory", "256MiB", "--open-metrics", "--log-level", "warning"]
        stack.enter_context(process(command, f"http://127.0.0.1:{port}/readyz"))
    return ports


def cached_share(ports: Sequence[int], is_fake: bool) -> tuple[float, float]:
    """Share of prompt tokens that were cached, and the largest replica's requests over the mean."""
    prompt = cached = 0.0
    requests = []
    for port in ports:
        if is_fake:
            load = fetch(f"http://127.0.0.1:{port}/load")
            prompt += load["prompt_tokens"]
            cached += load["cached_tokens"]
            requests.append(load["requests"])
            continue
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        prompt += sample(lines, "headrace_prompt_tokens_total")
        cached += sample(lines, "headrace_prefix_cache_hit_tokens_total")
        requests.append(sample(lines, "headrace_requests_started_total"))
    return cached / max(1.0, prompt), max(requests) / max(1e-9, statistics.mean(requests))


def sample(lines: Sequence[str], name: str) -> float:
    """Sum of a family's samples."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def run(policy: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One policy, from fresh replicas to the report."""
    is_fake = options.fleet == "fakes"
    with ExitStack() as stack:
        ports = fleet(options, stack)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = "\n".join(f'  - {{url: "http://127.0.0.1:{port}"}}' for port in ports)
        (directory / "fleet.yaml").write_text(
            f"gateway: {{port: {GATEWAY_PORT}, log_level: warning}}\n"
            f"routing: {{policy: {policy}}}\nhealth: {{slow_start: 0}}\nreplicas:\n{replicas}\n"
        )
        url = f"http://127.0.0.1:{GATEWAY_PORT}"
        stack.enter_context(
            process([HEADRACE, "gateway", str(directory / "fleet.yaml")], f"{url}/readyz")
        )
        time.sleep(2.0)
        command = [HEADRACE, "bench", "--url", url, "--seed", str(seed), "--json", "-"]
        command += ["--num-requests", str(options.requests), "--timeout", "900"]
        command += load_flags(options)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        report = json.loads(done.stdout)
        share, imbalance = cached_share(ports, is_fake)
    return {"policy": policy, "cached": share, "imbalance": imbalance, "report": report}


def sampled(trace: Path, num_requests: int, sessions: int, out: Path) -> int:
    """Write every request of one session in so many, of the trace's first requests; how many those are.

    A session is what shares the first block that is not common: that of fewer than a tenth of the requests.
    """
    with trace.open() as lines:
        requests = [json.loads(line) for line, _ in zip(lines, range(num_requests), strict=False)]
    seen = Counter(block for request in requests for block in set(request["hash_ids"]))

    def session(request: dict[str, Any]) -> int:
        blocks = request["hash_ids"]
        return next((b for b in blocks if seen[b] * 10 < len(requests)), blocks[-1])

    kept = [r for r in requests if zlib.crc32(str(session(r)).encode()) % sessions == 0]
    out.write_text("".join(json.dumps(request) + "\n" for request in kept))
    return len(kept)


def load_flags(options: argparse.Namespace) -> list[str]:
    """What `headrace bench` is told of the load."""
    if options.no_reuse:
        return ["--rate", str(options.rate), "--input-words", "1200", "--output-tokens", "16"]
    flags = ["--trace", str(options.trace), "--trace-speed", str(options.speed)]
    flags += ["--trace-scale", str(options.scale)]
    return [*flags, "--max-input-tokens", str(options.max_input), "--max-output-tokens", "16"]


def main() -> None:
    """Every policy in turn, then a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--fleet", choices=("fakes", "real"), default="fakes")
    parser.add_argument("--no-reuse", action="store_true")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=1, help="of so many, one is kept")
    parser.add_argument("--count", type=int, default=0, help="replicas")
    parser.add_argument("--speed", type=float, default=0.0, help="of the trace's arrivals")
    parser.add_argument("--scale", type=float, default=0.0, help="of the trace's lengths")
    parser.add_argument(
        "--rate", type=float, default=30.0, help="requests a second without a trace"
    )
    parser.add_argument("--max-input", type=int, default=0)
    parser.add_argument("--model", default="smollm2-135m")
    options = parser.parse_args()
    is_fake = options.fleet == "fakes"
    options.speed = options.speed or (16.0 if is_fake else 1.0)
    options.scale = options.scale or (0.1 if is_fake else 0.05)
    if (options.trace is None) != options.no_reuse:
        parser.error("--trace or --no-reuse is needed")
    settings = {
        key: value.name if isinstance(value, Path) else str(value)
        for key, value in vars(options).items()
    }
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        if options.sessions > 1:
            part = Path(directory) / options.trace.name
            options.requests = sampled(options.trace, options.requests, options.sessions, part)
            options.trace = part
        for policy in options.policies:
            found = run(policy, options, seed=7)
            rows.append(found)
            print(line(found), flush=True)
    name = "no-reuse" if options.no_reuse else options.trace.stem
    stamp = datetime.now(UTC).strftime("%Y-%m-%d-%H%M")
    file = RESULTS / f"routing-{options.fleet}-{name}.json"
    file.write_text(json.dumps({"at": stamp, "options": settings, "runs": rows}, indent=1) + "\n")
    file.with_suffix(".md").write_text(table(rows))
    print(f"written to {file} and .md")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What was found, as Markdown."""
    text = "| policy | cached | TTFT p50, s | TTFT p95, s | output tokens/s | busiest replica / mean | answered |\n"
    text += "|---|--:|--:|--:|--:|--:|--:|\n"
    for found in rows:
        measured = found["report"]["runs"][0]
        ttft = measured["ttft"]
        text += (
            f"| {found['policy']} | {found['cached']:.1%} | {ttft['p50']:.3f} | {ttft['p95']:.3f} "
            f"| {measured['output_tokens_per_second']:.0f} | {found['imbalance']:.2f} "
            f"| {measured['num_ok']} of {measured['num_requests']} |\n"
        )
    return text


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    measured = found["report"]["runs"][0]
    ttft = measured["ttft"]
    return (
        f"{found['policy']:26} cached {found['cached']:6.1%}  TTFT p50 {ttft['p50']:.3f} p95 {ttft['p95']:.3f} s  "
        f"{measured['output_tokens_per_second']:.0f} tok/s  max/mean {found['imbalance']:.2f}  "
        f"answered {measured['num_ok']} of {measured['num_requests']}"
    )


if __name__ == "__main__":
    main()
