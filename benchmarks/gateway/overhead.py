"""What a gateway costs, beside a direct connection, nginx and sglang's router (Rust), in one run.

    python benchmarks/gateway/overhead.py              needs `wrk` and `nginx` (Debian); installs sglang-router into build/
    python benchmarks/gateway/overhead.py --quick      every part, small

1. Requests a second of processor time: `wrk` sends whole chats to a server that answers at once (nginx), by way of each.
2. Added time: about 200 streams of 20 tokens a second from `stub.py`, of 3 seconds each, begun one after another (open loop),
   direct and through the gateway, alternating. Beside it a burst: all 200 begin at one moment.
3. Streams held: 5,000 streams of one token every 5 seconds.
"""

import argparse
import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from routing import HEADRACE, RESULTS, process

HERE = Path(__file__).parent
ROUTERS = HERE.parent.parent / "build" / "routers"
STUB, NGINX, FAST, GATEWAY, ROUTER = 9100, 9101, 9102, 9103, 9104
#: What sglang-router's launcher imports beside what it says that it needs.
ROUTER_PACKAGES = (
    "sglang-router==0.3.2",
    "setproctitle",
    "requests",
    "aiohttp",
    "orjson",
    "uvicorn",
    "fastapi",
)
BODY = json.dumps(
    {
        "model": "stub", "max_tokens": 16, "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me something nice about the sea and the ships on it."}],
    }
)  # fmt: skip
ANSWER = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"stub","choices":[{"index":0,"message":'
    '{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,'
    '"completion_tokens":2,"total_tokens":12}}'
)


def nginx(stack: ExitStack, directory: Path, name: str, server: str) -> int:
    """Start an nginx with one worker; its process id."""
    config = directory / f"{name}.conf"
    config.write_text(
        f"worker_processes 1; daemon off; pid {directory}/{name}.pid; error_log {directory}/{name}.log;\n"
        "events { worker_connections 10000; }\n"
        f"http {{ access_log off; keepalive_requests 1000000; {server} }}\n"
    )
    port = re.findall(r"listen 127\.0\.0\.1:(\d+)", server)[0]
    stack.enter_context(process(["nginx", "-c", str(config)], f"http://127.0.0.1:{port}/health"))
    return int((directory / f"{name}.pid").read_text())


def install_router() -> str:
    """sglang-router's program, in an environment of its own."""
    program = ROUTERS / "bin" / "sglang-router"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ROUTERS)], check=True)
        pip = [str(ROUTERS / "bin" / "pip"), "install", "-q"]
        subprocess.run([*pip, "--no-deps", ROUTER_PACKAGES[0]], check=True)
        subprocess.run([*pip, *ROUTER_PACKAGES[1:]], check=True)
    return str(program)


def cpu_of(pid: int) -> float:
    """Seconds of processor time of a process and its children."""
    parent = psutil.Process(pid)
    return sum(sum(p.cpu_times()[:2]) for p in (parent, *parent.children(recursive=True)))


def pid_of(port: int) -> int:
    """Who listens."""
    for found in psutil.net_connections("tcp"):
        if found.status == "LISTEN" and found.laddr.port == port and found.pid:
            return found.pid
    raise SystemExit(f"nobody listens on port {port}")


def wrk(port: int, seconds: int, script: Path) -> dict[str, float]:
    """Requests by `wrk`, and what they cost whoever listens on `port`."""
    pid = pid_of(port)
    before = cpu_of(pid)
    command = ["wrk", "-t1", "-c32", f"-d{seconds}s", "--latency", "-s", str(script)]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    text = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in text:
        raise SystemExit(f"port {port} does not answer well:\n{text}")
    count = int(re.findall(r"(\d+) requests in", text)[0])
    cost = cpu_of(pid) - before
    return {"per_second": count / seconds, "per_cpu_second": count / cost}


def requests_per_core(options: argparse.Namespace) -> dict[str, Any]:
    """Part 1."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        script = directory / "post.lua"
        script.write_text(
            f"wrk.method='POST'\nwrk.body='{BODY}'\nwrk.headers['Content-Type']='application/json'\n"
        )
        fast = (
            f"server {{ listen 127.0.0.1:{FAST} backlog=4096; default_type application/json;"
            f' location = /v1/models {{ return 200 \'{{"object":"list","data":[{{"id":"stub"}}]}}\'; }}'
            " location = /health { return 200 'ok'; }"
            ' location = /get_model_info { return 200 \'{"model_path":"stub","is_generation":true}\'; }'
            f" location / {{ return 200 '{ANSWER}'; }} }}"
        )
        nginx(stack, directory, "fast", fast)
        proxy = (
            f"upstream up {{ server 127.0.0.1:{FAST}; keepalive 64; }} server {{ listen 127.0.0.1:{NGINX} backlog=4096;"
            " location = /health { return 200 'ok'; } location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection \"\"; } }"
        )
        nginx(stack, directory, "proxy", proxy)
        config = directory / "fleet.yaml"
        config.write_text(
            f"gateway: {{port: {GATEWAY}, log_level: warning}}\n"
            f'replicas: [{{url: "http://127.0.0.1:{FAST}", dialect: openai, models: [stub]}}]\n'
        )
        command = [HEADRACE, "gateway", str(config)]
        stack.enter_context(process(command, f"http://127.0.0.1:{GATEWAY}/readyz"))
        targets = {"nginx": NGINX, "headrace gateway": GATEWAY}
        if not options.without_router:
            router = [install_router(), "launch", "--worker-urls", f"http://127.0.0.1:{FAST}"]
            router += ["--port", str(ROUTER), "--host", "127.0.0.1", "--policy", "round_robin"]
            router += ["--prometheus-port", "29011", "--log-level", "error"]
            stack.enter_context(process(router, f"http://127.0.0.1:{ROUTER}/health"))
            targets["sglang-router"] = ROUTER
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
        for _ in range(options.rounds):
            for name, port in targets.items():
                rounds[name].append(wrk(port, options.seconds, script))
    return {
        name: {key: statistics.median(r[key] for r in found) for key in found[0]}
        for name, found in rounds.items()
    }


def bench(url: str, tokens: int, *load: str) -> dict[str, Any]:
    """One run of `headrace bench`; `load` are its flags for clients or arrivals."""
    command = [HEADRACE, "bench", "--url", url, "--chat", "--json", "-", *load]
    command += ["--output-tokens", str(tokens), "--input-words", "64"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    run: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    return run


def burst(streams: int) -> list[str]:
    """So many streams that begin at one moment."""
    return ["--concurrency", str(streams), "--num-requests", str(streams)]


def steady(streams: int) -> list[str]:
    """So many streams of 3 seconds at any moment."""
    return [
        "--rate",
        f"{streams / 3:.2f}",
        "--arrivals",
        "constant",
        "--num-requests",
        str(4 * streams),
    ]


def added_time(options: argparse.Namespace) -> dict[str, Any]:
    """Part 2."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stub = [sys.executable, str(HERE / "stub.py"), "--port", str(STUB), "--interval", "0.05"]
        stack.enter_context(process(stub, f"http://127.0.0.1:{STUB}/health"))
        config = directory / "fleet.yaml"
        config.write_text(
            f"gateway: {{port: {GATEWAY}, log_level: warning}}\n"
            f'replicas: [{{url: "http://127.0.0.1:{STUB}", dialect: openai, models: [stub], max_concurrency: 10000}}]\n'
        )
        command = [HEADRACE, "gateway", str(config)]
        stack.enter_context(process(command, f"http://127.0.0.1:{GATEWAY}/readyz"))
        loads = {"steady": steady(options.streams), "burst": burst(options.streams)}
        return {name: compared(load, options.rounds) for name, load in loads.items()}


def compared(load: list[str], rounds: int) -> dict[str, Any]:
    """Times of one load, direct and through the gateway, medians of alternating rounds, and the difference."""
    found: dict[str, list[dict[str, Any]]] = {"direct": [], "gateway": []}
    for _ in range(rounds):
        for name, port in (("direct", STUB), ("gateway", GATEWAY)):
            found[name].append(bench(f"http://127.0.0.1:{port}", 60, *load))
    medians = {
        name: {
            f"{metric}_{point}": statistics.median(run[metric][point] for run in runs)
            for metric in ("ttft", "itl")
            for point in ("p50", "p95", "p99")
        }
        for name, runs in found.items()
    }
    added = {key: medians["gateway"][key] - medians["direct"][key] for key in medians["direct"]}
    return {**medians, "added": added}


def streams_held(options: argparse.Namespace) -> dict[str, Any]:
    """Part 3."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stub = [sys.executable, str(HERE / "stub.py"), "--port", str(STUB), "--interval", "5"]
        stack.enter_context(process(stub, f"http://127.0.0.1:{STUB}/health"))
        config = directory / "fleet.yaml"
        config.write_text(
            f"gateway: {{port: {GATEWAY}, log_level: warning}}\n"
            f'replicas: [{{url: "http://127.0.0.1:{STUB}", dialect: openai, models: [stub], max_concurrency: 20000}}]\n'
        )
        command = [HEADRACE, "gateway", str(config)]
        stack.enter_context(process(command, f"http://127.0.0.1:{GATEWAY}/readyz"))
        pid = pid_of(GATEWAY)
        resident = psutil.Process(pid).memory_info().rss
        before, began = cpu_of(pid), time.monotonic()
        run = bench(f"http://127.0.0.1:{GATEWAY}", 6, *burst(options.held))
        seconds = time.monotonic() - began
        return {
            "streams": options.held,
            "answered": run["num_ok"],
            "errors": run["errors"],
            "gateway_cpu_share": (cpu_of(pid) - before) / seconds,
            "bytes_per_stream": (psutil.Process(pid).memory_info().rss - resident) / options.held,
        }


def main() -> None:
    """All parts, and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--held", type=int, default=5000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--without-router", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.streams, options.held = 1, 1, 20, 100
    for program in ("wrk", "nginx"):
        if shutil.which(program) is None:
            parser.error(f"{program} is needed (apt-get install {program})")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    report = {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "requests": requests_per_core(options),
        "added": added_time(options),
        "held": streams_held(options),
    }
    print(table(report))
    if not options.quick:
        (RESULTS / "gateway-overhead.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "gateway-overhead.md").write_text(table(report) + "\n")


def table(report: dict[str, Any]) -> str:
    """Markdown."""
    ours = report["requests"]["headrace gateway"]["per_cpu_second"]
    lines = [
        f"Overhead of the gateway, {report['at']}", "",
        "| whole chats | requests/s | requests per second of processor time | headrace's share of it |", "|---|--:|--:|--:|",
    ]  # fmt: skip
    for name, found in report["requests"].items():
        share = ours / found["per_cpu_second"]
        lines.append(
            f"| {name} | {found['per_second']:,.0f} | {found['per_cpu_second']:,.0f} | {share:.2f} |"
        )
    lines += [
        "",
        "| streams, ms | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 |",
        "|---|--:|--:|--:|--:|",
    ]
    for load, rows in report["added"].items():
        for name, found in rows.items():
            cells = (found[key] * 1000 for key in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99"))
            lines.append(
                f"| {load}, {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"
            )
    held = report["held"]
    lines += [
        "",
        f"{held['answered']} of {held['streams']} slow streams held at once, {held['bytes_per_stream'] / 1024:.0f} KiB each, "
        f"{held['gateway_cpu_share']:.0%} of a core.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
