"""Perplexity on a fixed text, ours beside `llama-perplexity`'s on the same file.

Both read the text in chunks of `--context` tokens, the first token of each replaced by BOS where the model wants
one, and score the second half of each chunk: the figure is exp of the mean negative log-probability. Ours is what
the engine's kernels say, with keys and values kept as the engine keeps them.

    python benchmarks/compare/perplexity.py --model smollm2 --type own Q4_0 --kv-dtype int16 f16 int8
    python benchmarks/compare/perplexity.py --model gemma
"""

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import llama_perplexity
import numpy as np
from files import model_name, variant
from machine import machine
from numpy.typing import NDArray
from passages import TEXT
from scorer import Forced, Scorer

from headrace.kernels.dispatch import create_backend
from headrace.kernels.values import DType
from headrace.modeling.weights.sources import resolve
from headrace.preprocess.tokenizer import load_tokenizer

RESULTS = Path(__file__).parent.parent / "results"
ROWS = 32
"""Rows of logits whose exponentials are held at once."""


@dataclass(frozen=True)
class Score:
    """Sums over scored tokens."""

    perplexity: float
    standard_error: float
    chunks: int


def chunks(ids: list[int], context: int, bos: int | None) -> list[list[int]]:
    """Whole chunks of `context` tokens; each begins with BOS in place of its first token."""
    found = [ids[begin : begin + context] for begin in range(0, len(ids), context)]
    whole = [chunk for chunk in found if len(chunk) == context]
    return [[bos, *chunk[1:]] if bos is not None else chunk for chunk in whole]


def negative_log_probabilities(
    logits: NDArray[np.float32], targets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """-log softmax(logits)[target], row by row; sums in double precision."""
    result = np.empty(len(targets))
    for begin in range(0, len(targets), ROWS):
        rows = logits[begin : begin + ROWS]
        peak = rows.max(axis=1)
        total = np.exp(rows - peak[:, None]).sum(axis=1, dtype=np.float64)
        chosen = rows[np.arange(len(rows)), targets[begin : begin + ROWS]]
        result[begin : begin + ROWS] = np.log(total) + (peak - chosen)
    return result


def summarize(losses: Iterable[NDArray[np.float64]]) -> Score:
    """Perplexity with its standard error, from the losses of each chunk."""
    every = list(losses)
    joined = np.concatenate(every)
    perplexity = math.exp(joined.mean())
    error = perplexity * joined.std() / math.sqrt(max(1, joined.size - 1))
    return Score(perplexity, float(error), len(every))


def ours(path: Path, ids: list[list[int]], kv_dtype: str) -> Score:
    """What headrace's CPU kernels give."""
    half = len(ids[0]) // 2
    # What follows the last token is not in the chunk.
    sequences = [Forced(chunk[:-1], half) for chunk in ids]
    backend, dtype = create_backend("cpu"), DType[kv_dtype.upper()]
    scorer = Scorer(path, backend, dtype, sequences=sequences, batch=1)
    targets = (np.array(chunk[half + 1 :]) for chunk in ids)
    return summarize(
        negative_log_probabilities(logits, wanted)
        for logits, wanted in zip(scorer.logits(sequences), targets, strict=True)
    )


def compare(path: Path, kv_dtypes: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """One file: theirs once, ours for each way to keep keys and values."""
    tokenizer = load_tokenizer(path, cache=None)
    # llama-perplexity drops one line break at the end of the file.
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8").removesuffix("\n"))
    prefix = tokenizer.facts.prefix_ids
    every = chunks(ids, args.context, prefix[0] if prefix else None)[: args.chunks]
    found: dict[str, Any] = {
        "file": path.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "context": args.context,
        "tokens": args.context * len(every),
        "version": llama_perplexity.SDIST,
        "ours": {},
    }
    for kv_dtype in kv_dtypes:
        score = ours(path, every, kv_dtype)
        found["ours"][kv_dtype] = asdict(score)
        print(f"{path.name}: headrace, {kv_dtype} cache: {score.perplexity:.4f}", flush=True)
    theirs = llama_perplexity.measure(
        path, TEXT, context=args.context, chunks=len(every), threads=args.threads
    )
    print(f"{path.name}: llama-perplexity: {theirs.perplexity:.4f}", flush=True)
    found["llama.cpp"] = asdict(theirs)
    for score in found["ours"].values():
        score["ratio"] = score["perplexity"] / theirs.perplexity
    return found


def merged(before: list[dict[str, Any]], found: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of a result with one added, or replaced where it was there."""
    return [*(file for file in before if file["file"] != found["file"]), found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma or a model source")
    parser.add_argument("--type", nargs="+", default=["own"], help="own, Q4_0, Q8_0, BF16")
    parser.add_argument("--kv-dtype", nargs="+", default=["int16", "f16", "int8"])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=100, help="of the text's first (205 in all)")
    parser.add_argument("--threads", type=int, default=2, help="of llama-perplexity")
    args = parser.parse_args()
    path = resolve(model_name(args.model))
    target = RESULTS / f"perplexity-{model_name(args.model)}.json"
    for kind in args.type:
        file = path if kind == "own" else variant(path, kind)
        found = compare(file, args.kv_dtype, args)
        before = json.loads(target.read_text()) if target.exists() else {"files": []}
        files = merged(before["files"], found)
        report = {"model": model_name(args.model), "text": TEXT.name, "files": files}
        target.write_text(json.dumps(report, indent=2) + "\n")
        print(f"written: {target}", flush=True)


if __name__ == "__main__":
    main()
