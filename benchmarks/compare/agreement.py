"""Do we say what llama.cpp says, and are we as close to the truth as it is?

llama.cpp (the real server, from the `xllamacpp` wheel) continues 32 prompts greedily by 32 tokens. The same
tokens are fed to headrace's CPU kernels and to the float32 reference on the dequantised weights, and the
distributions at every position are compared:

- our most likely token against llama.cpp's, everywhere and where its two best are far apart;
- KL(reference || ours) against KL(reference || llama.cpp), over llama.cpp's `num_probs` most likely tokens
  and one bucket for the rest.

    python benchmarks/compare/agreement.py [--model smollm2-135m] [--prompts 32] [--tokens 32]
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.kernels.dispatch import create_backend
from headrace.kernels.ops import Backend, DType, KVLayout, StepInputs, StepLimits
from headrace.kernels.reference.backend import ReferenceBackend
from headrace.modeling.decoder import Decoder
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters
from headrace.modeling.weights.sources import resolve

HERE = Path(__file__).parent
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Continuation:
    """What llama.cpp said after a prompt, and how sure it was."""

    prompt_ids: list[int]
    token_ids: list[int]
    top: list[list[tuple[int, float]]]
    """Per position (token id, log-probability), best first."""


@dataclass(frozen=True)
class Agreement:
    """Shares are of positions; KL in nats, means over positions."""

    positions: int
    same_top1: float
    decided: int
    """Positions where llama.cpp's two best logits differ by more than 0.5."""
    same_top1_decided: float
    kl_ours: float
    kl_llama: float

    @property
    def kl_ratio(self) -> float:
        return self.kl_ours / max(self.kl_llama, 1e-12)


@contextmanager
def llama_server(model: Path, *, threads: int = 2) -> Iterator[str]:
    """The base URL of a llama.cpp server that lives as long as the block."""
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


class Scorer:
    """Teacher-forced logits of one model on one back end."""

    def __init__(self, path: Path, backend: Backend, *, max_tokens: int, dtype: DType) -> None:
        checkpoint = open_checkpoint(path)
        spec, parameter_specs = describe(checkpoint)
        parameters = load_parameters(checkpoint, parameter_specs)
        groups = spec.kv_groups()
        layer_groups = [0] * spec.num_layers
        for index, group in enumerate(groups):
            for layer in group.layers:
                layer_groups[layer] = index
        num_blocks = -(-max_tokens // BLOCK_SIZE)
        layout = KVLayout(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            block_size=BLOCK_SIZE,
            dtype=dtype,
            layer_groups=tuple(layer_groups),
            num_blocks=(num_blocks,) * len(groups),
        )
        limits = StepLimits(max_tokens=max_tokens, max_outputs=max_tokens)
        self._model = Decoder(spec, parameters).record(
            backend, limits, backend.create_kv_cache(layout)
        )
        self._table = np.arange(num_blocks, dtype=np.int32)[None, :]
        self._num_groups = len(groups)

    def logits(self, token_ids: list[int], first: int) -> NDArray[np.float32]:
        """[len(token_ids) - first, V]: what follows each of the tokens from `first` on."""
        count = len(token_ids)
        inputs = StepInputs(
            token_ids=np.array(token_ids, np.int32),
            positions=np.arange(count, dtype=np.int32),
            query_starts=np.array([0, count], np.int32),
            key_starts=np.zeros(1, np.int32),
            slots=np.zeros(1, np.int32),
            block_tables=(self._table,) * self._num_groups,
            output_rows=np.arange(first, count, dtype=np.int32),
        )
        self._model.program.run(inputs)
        return self._model.program.read(self._model.logits, count - first).copy()


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Row by row, in double precision."""
    values = logits.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def _coarse(log_probs: NDArray[np.float64], ids: list[int]) -> NDArray[np.float64]:
    """Probabilities of `ids`, and of all other tokens together."""
    head = np.exp(log_probs[ids])
    return np.append(head, max(1.0 - head.sum(), 1e-12))


def _kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    return float(np.sum(p * (np.log(p) - np.log(q))))


def compare(continuations: list[Continuation], ours: Scorer, reference: Scorer) -> Agreement:
    """The figures over all positions of all continuations."""
    same: list[bool] = []
    decided: list[bool] = []
    kl_ours: list[float] = []
    kl_llama: list[float] = []
    for item in continuations:
        tokens = item.prompt_ids + item.token_ids[:-1]
        first = len(item.prompt_ids) - 1
        our_logits = ours.logits(tokens, first)
        ours_log = log_softmax(our_logits)
        truth_log = log_softmax(reference.logits(tokens, first))
        for row, top in enumerate(item.top):
            ids = [token for token, _ in top]
            same.append(int(our_logits[row].argmax()) == ids[0])
            decided.append(top[0][1] - top[1][1] > 0.5)
            truth = _coarse(truth_log[row], ids)
            head = np.exp(np.array([log_prob for _, log_prob in top], np.float64))
            theirs = np.append(head, max(1.0 - head.sum(), 1e-12))
            kl_ours.append(_kl(truth, _coarse(ours_log[row], ids)))
            kl_llama.append(_kl(truth, theirs))
    return Agreement(
        positions=len(same),
        same_top1=float(np.mean(same)),
        decided=int(np.sum(decided)),
        same_top1_decided=float(np.mean([s for s, d in zip(same, decided, strict=True) if d])),
        kl_ours=float(np.mean(kl_ours)),
        kl_llama=float(np.mean(kl_llama)),
    )


def measure(model: str, *, prompts: int, tokens: int, num_probs: int) -> Agreement:
    """Run llama.cpp, then both of our back ends, on the same file."""
    path = resolve(model)
    texts = (HERE / "prompts.txt").read_text().strip().split("\n")[:prompts]
    with llama_server(path) as url:
        continuations = [
            continue_prompt(url, text.replace("\\n", "\n"), tokens=tokens, num_probs=num_probs)
            for text in texts
        ]
    longest = max(len(item.prompt_ids) + len(item.token_ids) for item in continuations)
    ours = Scorer(path, create_backend("cpu"), max_tokens=longest, dtype=DType.F16)
    reference = Scorer(path, ReferenceBackend(exact=False), max_tokens=longest, dtype=DType.F32)
    return compare(continuations, ours, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--num-probs", type=int, default=2000)
    args = parser.parse_args()
    result = measure(args.model, prompts=args.prompts, tokens=args.tokens, num_probs=args.num_probs)
    print(json.dumps(asdict(result) | {"kl_ratio": result.kl_ratio}, indent=2))


if __name__ == "__main__":
    main()
