"""One peer, one round: start it, put the work on it, write the figures down.

HTTP servers get the closed loops from `headrace bench` in a process of its own, and prompts for prefill one by one
from here. OpenVINO GenAI has no server: its continuous batching does the same in its own process, without the
cost of HTTP.
"""

import http.client
import json
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import IO, Any
from urllib.parse import urlsplit

from peers import HEADRACE, HERE, READY_PATHS, Peer
from work import Figures, PeerError, Work, last_words

READY_LIMIT = 400.0
"""Seconds until a server must be ready: vLLM takes two minutes."""


def measure(peer: Peer, work: Work) -> Figures:
    """The whole round. Raises PeerError."""
    if peer.name == "openvino":
        return _measure_openvino(peer, work)
    figures = Figures()
    readiness = [_start_and_stop(peer, work) for _ in range(work.starts - 1)]
    # llama.cpp divides its context among slots, so it is started anew for each number of clients.
    divides = peer.name == "llama.cpp"
    counts = [(n,) for n in work.concurrency] if divides else [work.concurrency]
    for number, some in enumerate(counts):
        with server(peer, work, max(some)) as (url, seconds):
            readiness.append(seconds)
            if number == 0 and not divides:
                _prefill(url, work, figures)
            _warm_up(url)
            for clients in some:
                _load(url, work, clients, figures)
    if divides and work.prefill_tokens:
        with server(peer, work, 1) as (url, seconds):
            _prefill(url, work, figures)
    figures.ready_seconds = median(readiness)
    return figures


@contextmanager
def server(peer: Peer, work: Work, clients: int) -> Iterator[tuple[str, float]]:
    """(base URL, seconds from exec to ready) of a server that lives as long as the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        command = peer.command(work, port, clients)
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                while not _answers(url + READY_PATHS[peer.name]):
                    if process.poll() is not None or time.perf_counter() - began > READY_LIMIT:
                        raise PeerError(_said(log))
                    time.sleep(0.01)
                yield url, time.perf_counter() - began
            finally:
                process.send_signal(signal.SIGKILL if peer.name == "llama.cpp" else signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def _said(log: IO[str]) -> str:
    log.seek(0)
    return last_words(log.read())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _start_and_stop(peer: Peer, work: Work) -> float:
    with server(peer, work, work.concurrency[0]) as (_, seconds):
        return seconds


def _warm_up(url: str) -> None:
    """One short answer, so that no loop pays for what happens once."""
    first_token_seconds(url, model_id(url), "once upon a time", max_tokens=8)


def _load(url: str, work: Work, clients: int, figures: Figures) -> None:
    command = [str(HEADRACE), "bench", "--url", url, "--json", "-"]
    command += ["--concurrency", str(clients), "--seed", str(work.load_seed(clients))]
    command += ["--num-requests", str(work.num_requests(clients))]
    command += ["--input-words", str(work.input_words)]
    command += ["--output-tokens", str(work.output_tokens)]
    output = subprocess.run(command, capture_output=True, text=True)
    if output.returncode:
        raise PeerError(last_words(output.stderr))
    run = json.loads(output.stdout)["runs"][0]
    if run["errors"]:
        raise PeerError(f"requests failed: {run['errors']} {run['error_examples']}")
    figures.output_tokens_per_second[clients] = run["output_tokens_per_second"]
    figures.ttft_p50[clients] = run["ttft"]["p50"]
    figures.ttft_p95[clients] = run["ttft"]["p95"]


def _prefill(url: str, work: Work, figures: Figures) -> None:
    model = model_id(url)
    for tokens in work.prefill_tokens:
        _, *seconds = [
            first_token_seconds(url, model, ids, max_tokens=1)
            for ids in work.prefill_prompts(tokens)
        ]
        figures.prefill_tokens_per_second[tokens] = tokens / median(seconds)


def model_id(url: str) -> str:
    """The first model that a server lists."""
    with urllib.request.urlopen(url + "/v1/models", timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def first_token_seconds(url: str, model: str, prompt: str | list[int], *, max_tokens: int) -> float:
    """From sending the request to the first event of its stream; the stream is read to its end.

    Raises PeerError for an error and for a prompt that was not read as the number of tokens it has.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)
    payload = json.dumps(body)
    try:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise PeerError(f"status {response.status}: {response.read()[:200]!r}")
        line = b" "
        while line and not line.startswith(b"data:"):
            line = response.readline()
        seconds = time.perf_counter() - began
        events = [line, *response.read().splitlines()]
    finally:
        connection.close()
    counted = _prompt_tokens(events)
    if isinstance(prompt, list) and counted != len(prompt):
        raise PeerError(f"a prompt of {len(prompt)} tokens was read as {counted}")
    return seconds


def _prompt_tokens(events: list[bytes]) -> int | None:
    for event in events:
        if event.startswith(b"data:") and b"prompt_tokens" in event:
            usage: dict[str, Any] | None = json.loads(event[5:]).get("usage")
            if usage:
                return int(usage["prompt_tokens"])
    return None


def _measure_openvino(peer: Peer, work: Work) -> Figures:
    orders = {
        "threads": work.threads,
        "output_tokens": work.output_tokens,
        "loops": [{"clients": n, "prompts": work.prompts(n)} for n in work.concurrency],
        "prefill": [work.prefill_prompts(tokens) for tokens in work.prefill_tokens],
    }
    command = [str(peer.python), str(HERE / "openvino_loop.py"), str(peer.model)]
    output = subprocess.run(command, input=json.dumps(orders), capture_output=True, text=True)
    if output.returncode:
        raise PeerError(last_words(output.stderr or f"ended with {output.returncode}"))
    figures = Figures()
    for row in (json.loads(line) for line in output.stdout.splitlines() if line[:1] == "{"):
        if "ready_seconds" in row:
            figures.ready_seconds = row["ready_seconds"]
        elif "prompt_tokens" in row:
            figures.prefill_tokens_per_second[row["prompt_tokens"]] = row["tokens_per_second"]
        else:
            figures.output_tokens_per_second[row["clients"]] = row["output_tokens_per_second"]
            figures.ttft_p50[row["clients"]] = row["ttft_p50"]
            figures.ttft_p95[row["clients"]] = row["ttft_p95"]
    return figures
