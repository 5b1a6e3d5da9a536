"""Same work, same machine, in turn: headrace beside the servers that people use on CPUs.

Every round gives each peer the same closed loop with fresh prompts, one after the other, so that what the
machine does meanwhile falls on all alike; what counts is the ratio of the medians.

    make bench            or    python benchmarks/compare/run.py --rounds 3 --peers headrace llama.cpp
"""

import argparse
import fcntl
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import gguf
from peers import Figures, Peer, Work
from plot import draw
from requantize import requantize

from headrace.config.env import cache_home
from headrace.modeling.weights.sources import resolve

RESULTS = Path(__file__).parent.parent / "results"
LOCK = Path(tempfile.gettempdir()) / "headrace-bench.lock"


def peers(model: str, names: list[str]) -> list[Peer]:
    """headrace on the file as it is; llama.cpp and OpenVINO on their fastest file of the class."""
    path = resolve(model)
    found = [Peer("headrace", path, "headrace")]
    fast = path
    if "llama.cpp" in names or "openvino" in names:
        fast = _variant(path, gguf.GGMLQuantizationType.Q4_0)
    found.append(Peer("llama.cpp", fast, "llama.cpp", "xllamacpp==2026.10.11549"))
    found.append(Peer("openvino", fast, "openvino", "openvino-genai==2026.4.1.0"))
    return [peer for peer in found if peer.name in names]


def _variant(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    target = cache_home() / "bench" / f"{path.stem}.{kind.name}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".part")
        requantize(path, partial, kind)
        partial.replace(target)
    return target


@contextmanager
def machine_lock() -> Iterator[None]:
    """One comparison at a time on this machine."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def medians(rounds: list[dict[str, Figures]]) -> dict[str, dict[str, Any]]:
    """Per peer: the median over rounds of every figure."""
    result: dict[str, dict[str, Any]] = {}
    for name in rounds[0]:
        figures = [some[name] for some in rounds]
        result[name] = {"ready_seconds": median(f.ready_seconds for f in figures)}
        for key in ("output_tokens_per_second", "ttft_p50", "ttft_p95"):
            counts = getattr(figures[0], key)
            result[name][key] = {c: median(getattr(f, key)[c] for f in figures) for c in counts}
    return result


def table(summary: dict[str, dict[str, Any]], concurrency: tuple[int, ...]) -> str:
    """Markdown: output tok/s and TTFT p95, with headrace's ratio to the best other peer."""
    head = ["", "start → ready", *(f"{c} clients" for c in concurrency)]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for name, row in summary.items():
        cells = [
            f"{row['output_tokens_per_second'][c]:.0f} tok/s, {1e3 * row['ttft_p95'][c]:.0f} ms"
            for c in concurrency
        ]
        lines.append("| " + " | ".join([name, f"{row['ready_seconds']:.2f} s", *cells]) + " |")
    others = [name for name in summary if name != "headrace"]
    if "headrace" in summary and others:
        ours = summary["headrace"]["output_tokens_per_second"]
        best = {
            c: max(summary[name]["output_tokens_per_second"][c] for name in others)
            for c in concurrency
        }
        ratios = [f"{ours[c] / best[c]:.2f}×" for c in concurrency]
        lines.append("| " + " | ".join(["headrace / best other", "", *ratios]) + " |")
    return "\n".join(lines) + "\n\nOutput tokens per second, and time to first token (p95).\n"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0]
    return {"cpu": info, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--peers", nargs="+", default=["headrace", "llama.cpp", "openvino"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--input-words", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    chosen = peers(args.model, args.peers)
    for peer in chosen:
        peer.install()
    rounds: list[dict[str, Figures]] = []
    with machine_lock():
        for number in range(args.rounds):
            work = Work(
                tuple(args.concurrency),
                args.input_words,
                args.output_tokens,
                args.requests_per_client,
                args.threads,
                seed=int(time.time()),
            )
            rounds.append({})
            for peer in chosen:
                rounds[-1][peer.name] = figures = peer.measure(work)
                shown = {c: round(v) for c, v in figures.output_tokens_per_second.items()}
                print(f"round {number + 1}: {peer.name:10} tok/s {shown}", flush=True)
    summary = medians(rounds)
    text = table(summary, tuple(args.concurrency))
    print("\n" + text)
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{now:%Y-%m-%d-%H%M}-{args.model}"
    report = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "work": vars(args),
        "versions": {peer.name: peer.version() for peer in chosen},
        "files": {peer.name: peer.model.name for peer in chosen},
        "medians": summary,
        "rounds": [{name: asdict(f) for name, f in some.items()} for some in rounds],
    }
    # The keys are numbers here and text in the file: what is drawn is what is written.
    written = json.dumps(report, indent=2)
    stem.with_suffix(".json").write_text(written + "\n")
    draw(json.loads(written), stem.with_suffix(".svg"))
    stem.with_suffix(".md").write_text(f"# {args.model}, {now:%Y-%m-%d}\n\n{text}")
    print(f"written: {stem}.json")


if __name__ == "__main__":
    main()
