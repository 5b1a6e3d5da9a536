"""Do we say what llama.cpp says, and are we as close to the truth as it is?

llama.cpp (the real server, from the `xllamacpp` wheel) continues 32 prompts greedily by 32 tokens. The same
tokens are fed to headrace's CPU kernels and to the float32 reference on the dequantised weights, and the
distributions at every position are compared:

- our most likely token against llama.cpp's, everywhere and where its two best are far apart;
- KL(reference || ours) against KL(reference || llama.cpp), over llama.cpp's `num_probs` most likely tokens
  and one bucket for the rest.

The prompts are passages that `passages.py` draws by rule from a text that was fixed before the first run.

    python benchmarks/compare/agreement.py [--model smollm2-135m] [--prompts 32] [--tokens 32]
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from files import model_name
from numpy.typing import NDArray
from passages import COUNT, TEXT, passages
from scorer import Forced, Scorer, log_softmax

from headrace.kernels.dispatch import create_backend
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.kernels.values import DType
from headrace.modeling.weights.sources import resolve

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"


@dataclass(frozen=True)
class Continuation:
    """What llama.cpp said after a prompt, and how sure it was."""

    prompt_ids: list[int]
    token_ids: list[int]
    top: list[list[tuple[int, float]]]
    """Per position (token id, log-probability), best first."""


@dataclass(frozen=True)
class Agreement:
    """How often our most likely token is llama.cpp's; shares are of positions."""

    positions: int
    same_top1: float
    decided: int
    """Positions where llama.cpp's two best logits differ by more than 0.5."""
    same_top1_decided: float


@dataclass(frozen=True)
class Divergence:
    """Both from the float32 reference; KL in nats, means over positions."""

    same_top1_reference: float
    """Positions where the reference agrees with llama.cpp: what near ties leave to be had."""
    kl_ours: float
    kl_llama: float

    @property
    def kl_ratio(self) -> float:
        return self.kl_ours / max(self.kl_llama, 1e-12)


@contextmanager
def llama_server(model: Path, *, threads: int = 1) -> Iterator[str]:
    """The base URL of a llama.cpp server that lives as long as the block.

    One thread: its threads spin while they wait for one another, which on a busy machine takes minutes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(HERE / "llama_server.py"), str(model), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--threads", str(threads)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(url, process)
            yield url
        finally:
            process.kill()


def _wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError("llama.cpp's server ended while it started")
        try:
            with urllib.request.urlopen(url + "/health", timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("llama.cpp's server did not get ready")


def post(url: str, body: dict[str, Any]) -> Any:
    """POST JSON, get JSON."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def continue_prompt(url: str, text: str, *, tokens: int, num_probs: int) -> Continuation:
    """Greedy continuation by llama.cpp, with its most likely tokens at each position."""
    prompt_ids = post(url + "/tokenize", {"content": text, "add_special": True})["tokens"]
    answer = post(
        url + "/completion",
        {
            "prompt": prompt_ids,
            "n_predict": tokens,
            "temperature": 0,
            "n_probs": num_probs,
            "ignore_eos": True,
            "cache_prompt": False,
        },
    )
    steps = answer["completion_probabilities"]
    top = [[(c["id"], c["logprob"]) for c in step["top_logprobs"]] for step in steps]
    return Continuation(prompt_ids, [step["id"] for step in steps], top)


def _coarse(log_probs: NDArray[np.float64], ids: list[int]) -> NDArray[np.float64]:
    """Probabilities of `ids`, and of all other tokens together."""
    head = np.exp(log_probs[ids])
    return np.append(head, max(1.0 - head.sum(), 1e-12))


def _kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    return float(np.sum(p * (np.log(p) - np.log(q))))


def forced(continuations: Sequence[Continuation]) -> list[Forced]:
    """Each prompt with what llama.cpp said, but for its last token, which nothing follows."""
    return [
        Forced(item.prompt_ids + item.token_ids[:-1], len(item.prompt_ids) - 1)
        for item in continuations
    ]


def continue_all(path: Path, *, prompts: int, tokens: int, num_probs: int) -> list[Continuation]:
    """What llama.cpp says after the first `prompts` passages of the text."""
    texts = passages(TEXT.read_text(encoding="utf-8"))[:prompts]
    with llama_server(path) as url:
        return [continue_prompt(url, text, tokens=tokens, num_probs=num_probs) for text in texts]


def our_scorer(
    path: Path, continuations: Sequence[Continuation], kv_dtype: str = "int16"
) -> Scorer:
    """The CPU kernels, with keys and values as the engine keeps them by default."""
    return Scorer(path, create_backend("cpu"), DType(kv_dtype), sequences=forced(continuations))


def reference_scorer(path: Path, continuations: Sequence[Continuation]) -> Scorer:
    """Dequantised weights, nothing rounded below float32."""
    backend = ReferenceBackend(exact=False)
    return Scorer(path, backend, DType.F32, sequences=forced(continuations))


def compare(continuations: Sequence[Continuation], ours: Scorer) -> Agreement:
    """Top-1 over all positions of all continuations."""
    same: list[bool] = []
    decided: list[bool] = []
    answers = ours.logits(forced(continuations))
    for item, logits in zip(continuations, answers, strict=True):
        for best, top in zip(logits.argmax(axis=1), item.top, strict=True):
            same.append(int(best) == top[0][0])
            decided.append(top[0][1] - top[1][1] > 0.5)
    return Agreement(
        positions=len(same),
        same_top1=float(np.mean(same)),
        decided=sum(decided),
        same_top1_decided=float(np.mean([s for s, d in zip(same, decided, strict=True) if d])),
    )


def diverge(continuations: Sequence[Continuation], ours: Scorer, reference: Scorer) -> Divergence:
    """KL over llama.cpp's reported tokens and one bucket for all others."""
    same: list[bool] = []
    kl_ours: list[float] = []
    kl_llama: list[float] = []
    sequences = forced(continuations)
    answers = zip(ours.logits(sequences), reference.logits(sequences), strict=True)
    for item, (our_logits, true_logits) in zip(continuations, answers, strict=True):
        ours_log, truth_log = log_softmax(our_logits), log_softmax(true_logits)
        for row, top in enumerate(item.top):
            ids = [token for token, _ in top]
            same.append(int(true_logits[row].argmax()) == ids[0])
            truth = _coarse(truth_log[row], ids)
            head = np.exp(np.array([log_prob for _, log_prob in top], np.float64))
            kl_ours.append(_kl(truth, _coarse(ours_log[row], ids)))
            kl_llama.append(_kl(truth, np.append(head, max(1.0 - head.sum(), 1e-12))))
    return Divergence(float(np.mean(same)), float(np.mean(kl_ours)), float(np.mean(kl_llama)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--num-probs", type=int, default=2000)
    parser.add_argument(
        "--kv-dtype", choices=["bf16", "f16", "int16", "int8", "f32"], default="int16"
    )
    args = parser.parse_args()
    args.model = model_name(args.model)
    path = resolve(args.model)
    continuations = continue_all(
        path, prompts=args.prompts, tokens=args.tokens, num_probs=args.num_probs
    )
    ours = our_scorer(path, continuations, args.kv_dtype)
    agreement = compare(continuations, ours)
    divergence = diverge(continuations, ours, reference_scorer(path, continuations))
    found = asdict(agreement) | asdict(divergence) | {"kl_ratio": divergence.kl_ratio}
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": args.model,
        "file": path.name,
        "prompts": args.prompts,
        "tokens": args.tokens,
        "kv_dtype": args.kv_dtype,
        "llama.cpp": f"xllamacpp {version('xllamacpp')}",
    }
    written = json.dumps(about | found, indent=2)
    print(written)
    if args.prompts == COUNT:
        suffix = "" if args.kv_dtype == "int16" else f"-{args.kv_dtype}"
        (RESULTS / f"agreement-{args.model}{suffix}.json").write_text(written + "\n")


if __name__ == "__main__":
    main()
