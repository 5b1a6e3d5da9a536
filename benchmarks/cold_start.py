"""How long until a token is answered: a parked replica, a pre-started process, and one that is executed.

Each is measured from the order (or exec) to the end of an answer of one token, and to the first answer at all.

python benchmarks/cold_start.py [--model smollm2-135m] [--rounds 5]
"""

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from start import free_port

TOKEN = "cold-start"


def call(port: int, path: str, body: dict[str, object]) -> tuple[int, bytes]:
    """Post; the status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        headers = {"content-type": "application/json", "x-headrace-control": TOKEN}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def order(port: int, name: str, **body: object) -> float:
    """Give an order; the seconds until it was obeyed."""
    began = time.perf_counter()
    status, said = call(port, f"/control/{name}", body)
    if status != 200:
        raise SystemExit(f"{name}: {status} {said.decode()}")
    return time.perf_counter() - began


def answer(port: int) -> bool:
    """Whether one token is answered."""
    try:
        return call(port, "/v1/completions", {"prompt": "Hello", "max_tokens": 1})[0] == 200
    except OSError:
        return False


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[int, subprocess.Popen[bytes], float]]:
    """A server: its port, its process, and when it was executed."""
    port = free_port()
    command = [sys.executable, "-m", "headrace", "serve", *arguments, "--port", str(port)]
    began = time.perf_counter()
    server = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HEADRACE_CONTROL_TOKEN": TOKEN},
    )
    try:
        yield port, server, began
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def wait(port: int, state: str) -> None:
    """Until `/readyz` says this state."""
    for _ in range(6000):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if json.loads(connection.getresponse().read()).get("state") == state:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.01)
    raise SystemExit(f"The server is not {state}.")


def until_answered(port: int, began: float) -> float:
    """Seconds from `began` to the end of an answer of one token."""
    while not answer(port):
        time.sleep(0.002)
    return time.perf_counter() - began


def measure(model: str, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """By way: seconds until the order was obeyed, and until a token was answered."""
    found: dict[str, tuple[list[float], list[float]]] = {
        way: ([], []) for way in ("parked", "prestarted", "exec")
    }
    with serving(model) as (port, _, began):
        until_answered(port, began)  # fills the caches of files
        for _ in range(rounds):
            order(port, "park")
            began = time.perf_counter()
            found["parked"][0].append(order(port, "unpark"))
            found["parked"][1].append(until_answered(port, began))
    for _ in range(rounds):
        with serving("--no-model") as (port, _, _):
            wait(port, "empty")
            began = time.perf_counter()
            found["prestarted"][0].append(order(port, "load", model=model))
            found["prestarted"][1].append(until_answered(port, began))
    for _ in range(rounds):
        with serving(model) as (port, _, began):
            wait(port, "ready")
            found["exec"][0].append(time.perf_counter() - began)
            found["exec"][1].append(until_answered(port, began))
    return found


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for way, (obeyed, answered) in measure(args.model, args.rounds).items():
        print(
            f"{way:10} serving {statistics.median(obeyed):6.3f} s (least {min(obeyed):.3f}), "
            f"first token {statistics.median(answered):6.3f} s (least {min(answered):.3f})"
        )


if __name__ == "__main__":
    main()
