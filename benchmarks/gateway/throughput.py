"""Tokens per second through the gateway against those of the replica itself: one real replica, sixteen clients.

    python benchmarks/gateway/throughput.py [--model smollm2-135m]

At least 95 % of direct is wanted. Rounds alternate, each of the same requests; medians count. Replica, gateway and clients share the
machine: on few cores a part of what is lost is not waiting but processor time, which is shown for each request.
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

REPLICA, GATEWAY = 9301, 9300
CLIENTS, TOKENS = 16, 64


async def ask(port: int, number: int) -> int:
    """One streamed completion over a connection of its own; its tokens."""
    body = json.dumps(
        {
            "prompt": f"Story number {number}: once upon a time",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer[:20]:
            raise SystemExit(answer.decode())
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += await reader.read(1 << 16)
    finally:
        writer.close()
    told = data.rpartition(b'"completion_tokens":')[2]
    return int(told.split(b",")[0].split(b"}")[0])


async def one_round(port: int, each: int) -> float:
    """Tokens per second of all clients, each of which asks so often, one request after another."""

    async def client(number: int) -> int:
        return sum([await ask(port, number * each + turn) for turn in range(each)])

    started = time.monotonic()
    tokens = sum(await asyncio.gather(*(client(number) for number in range(CLIENTS))))
    return tokens / (time.monotonic() - started)


def main() -> None:
    """Both ways in turn, and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=int, default=3, help="requests of each client in a round")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        serve = [HEADRACE, "serve", options.model, "--port", str(REPLICA)]
        serve += ["--trusted-peer-token", "between-us"]
        stack.enter_context(process(serve, f"http://127.0.0.1:{REPLICA}/readyz"))
        config = directory / "fleet.yaml"
        url = f"http://127.0.0.1:{REPLICA}"
        config.write_text(
            f"gateway: {{port: {GATEWAY}, log_level: warning}}\n"
            f'replicas: [{{url: "{url}", peer_token: between-us}}]\n'
        )
        ready = f"http://127.0.0.1:{GATEWAY}/readyz"
        gateway = stack.enter_context(process([HEADRACE, "gateway", str(config)], ready))
        ports = {"direct": REPLICA, "gateway": GATEWAY}
        for port in ports.values():
            asyncio.run(one_round(port, 1))
        found: dict[str, list[float]] = {name: [] for name in ports}
        used = 0.0
        for number in range(options.rounds):
            order = list(ports) if number % 2 == 0 else list(reversed(ports))
            for name in order:
                before = processor_seconds(gateway.pid)
                found[name].append(asyncio.run(one_round(ports[name], options.each)))
                if name == "gateway":
                    used += processor_seconds(gateway.pid) - before
                print(f"{name:8} {found[name][-1]:7.1f} tokens/s", flush=True)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = medians["gateway"] / medians["direct"]
    per_request = used / (options.rounds * options.each * CLIENTS)
    print(
        f"gateway / direct {ratio:.3f}; gateway {per_request * 1e3:.2f} ms of processor a request"
    )
    report = {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "model": options.model,
        "clients": CLIENTS,
        "tokens": TOKENS,
        "tokens_per_second": found,
        "ratio": ratio,
        "gateway_processor_seconds_per_request": per_request,
        "cores": os.cpu_count(),
    }
    (RESULTS / "gateway-throughput.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
