"""Same work, same machine, in turn: headrace beside the servers that people use on CPUs.

Every round gives each peer the same prompts, one peer after the other, and the next round turns the order round, so
that what the machine does meanwhile falls on all alike; what counts is the ratio of the medians.

    make bench                                   4-bit, two rounds, about ten minutes
    make bench ARGS="--class 8bit --rounds 1"    Q8_0 for all; --class bf16 likewise
    make bench ARGS="--model gemma --rounds 1"   Gemma 3 270M, the publisher's file for all
    make bench ARGS="--quick"                    a look whether everything runs; kept out of the results
"""

import argparse
import json
import platform
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from files import Precision, model_files, model_name
from machine import machine, machine_lock
from measure import measure
from peers import NAMES, ROOT, Peer
from plot import draw
from readme import update
from report import OURS, markdown, medians, ratios
from work import Figures, PeerError, Work

RESULTS = ROOT / "benchmarks" / "results"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma or a model source")
    parser.add_argument("--class", dest="precision", choices=["4bit", "8bit", "bf16"])
    parser.add_argument("--only", nargs="+", choices=NAMES, help="peers to run, vllm included")
    parser.add_argument("--vllm", action="store_true", help="vLLM too: heavy, two minutes to start")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--input-words", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument("--prefill-tokens", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--prefill-requests", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="per server and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.model = model_name(args.model)
    if args.quick:
        args.rounds, args.concurrency, args.prefill_tokens = 1, [1, 4], [128]
        args.input_words, args.output_tokens, args.prefill_requests, args.starts = 32, 16, 1, 2
    return args


def work_of(args: argparse.Namespace) -> Work:
    """Fresh prompts, the same for all peers."""
    return Work(
        concurrency=tuple(args.concurrency),
        input_words=args.input_words,
        output_tokens=args.output_tokens,
        requests_per_client=args.requests_per_client,
        prefill_tokens=tuple(args.prefill_tokens),
        prefill_requests=args.prefill_requests,
        starts=args.starts,
        threads=args.threads,
        seed=time.time_ns() // 1_000_000,
    )


def precision_of(args: argparse.Namespace) -> Precision:
    """Gemma's file mixes types that nothing but its publisher's quantiser makes: it is run as it is."""
    if args.model == "gemma-3-270m":
        if args.precision:
            raise SystemExit("--class does not go with gemma: all run the publisher's file.")
        return Precision.OWN
    return Precision(args.precision or "4bit")


def chosen_peers(args: argparse.Namespace) -> list[Peer]:
    """In the order of the table, installed."""
    files = model_files(args.model, precision_of(args))
    wanted = args.only or [name for name in NAMES if name != "vllm" or args.vllm]
    peers = [Peer(name, files.of(name)) for name in NAMES if name in wanted]
    for peer in peers:
        peer.install()
    return peers


def run_rounds(
    peers: list[Peer], args: argparse.Namespace
) -> tuple[list[dict[str, Figures]], dict[str, str]]:
    """Figures of each round, and of peers that failed what they said. A peer that failed is left out."""
    rounds: list[dict[str, Figures]] = []
    errors: dict[str, str] = {}
    for number in range(args.rounds):
        work = work_of(args)
        rounds.append({})
        for peer in peers if number % 2 == 0 else reversed(peers):
            if peer.name in errors:
                continue
            try:
                figures = rounds[-1][peer.name] = measure(peer, work)
            except PeerError as error:
                errors[peer.name] = str(error)
                print(f"round {number + 1}: {peer.name} failed: {error}", flush=True)
                continue
            shown = {c: round(v) for c, v in figures.output_tokens_per_second.items()}
            filled = {n: round(v) for n, v in figures.prefill_tokens_per_second.items()}
            print(f"round {number + 1}: {peer.name:10} {shown} prefill {filled}", flush=True)
    return rounds, errors


def report(
    peers: list[Peer],
    args: argparse.Namespace,
    rounds: list[dict[str, Figures]],
    errors: dict[str, str],
) -> dict[str, Any]:
    """All that is written down of a comparison."""
    found = medians(rounds, errors)
    named = {name: found[name] for name in NAMES if name in found}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "python": platform.python_version(),
        "precision": str(precision_of(args)),
        "work": {k: v for k, v in vars(args).items() if k not in ("precision", "only", "vllm")},
        "versions": {peer.name: peer.version() for peer in peers},
        "files": {peer.name: peer.model.name for peer in peers},
        "flags": {peer.name: peer.flags(work_of(args)) for peer in peers},
        "medians": named,
        "ratios": {ours: ratios(named, ours) for ours in OURS if ours in named},
        "rounds": [{name: asdict(f) for name, f in some.items()} for some in rounds],
    }


def write(result: dict[str, Any], folder: Path) -> Path:
    """JSON, tables and plot beside each other; the path of the JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    when = datetime.fromisoformat(result["date"])
    model = Path(str(result["work"]["model"])).stem
    stem = folder / f"{when:%Y-%m-%d-%H%M}-{model}-{result['precision']}"
    # The keys of rounds are numbers here and text in the file: what is drawn is what is written.
    written = json.dumps(result, indent=2)
    target = stem.with_name(stem.name + ".json")
    target.write_text(written + "\n")
    draw(json.loads(written), stem.with_name(stem.name + ".svg"))
    flags = "\n".join(f"- {name}: {result['versions'][name]}: `{flags}`"
                      for name, flags in result["flags"].items())  # fmt: skip
    text = f"# {model}, {result['precision']}, {when:%Y-%m-%d}\n\n{markdown(result)}\n{flags}\n"
    stem.with_name(stem.name + ".md").write_text(text)
    return target


def main() -> None:
    args = options()
    peers = chosen_peers(args)
    with machine_lock():
        rounds, errors = run_rounds(peers, args)
    result = report(peers, args, rounds, errors)
    is_shown = not args.quick and not args.only
    target = write(result, RESULTS if is_shown else ROOT / "build" / "bench")
    print(f"\n{markdown(result)}\nwritten: {target}")
    if is_shown:
        update(ROOT)


if __name__ == "__main__":
    main()
