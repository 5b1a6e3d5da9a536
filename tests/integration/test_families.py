"""Every family gives the logits of transformers, whichever way a prompt is cut into steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.gguf_models import write_gguf
from tests.support.hf_families import CASES, Case, model_logits, random_sequences, save_model
from tests.support.model_run import ModelRun, Step, chunked, decode, whole

from headrace.kernels.dispatch import create_backend
from headrace.kernels.formats import WeightFormat
from headrace.kernels.ops import Backend
from headrace.kernels.values import DType
from headrace.modeling.registry import describe
from headrace.modeling.weights.checkpoint import open_checkpoint
from headrace.modeling.weights.load import load_parameters

#: Several sequences a batch; the longest outlives its first block even with a window of 8.
LENGTHS = (27, 9, 1, 18)

#: float32 against float32: sums of some hundred products in another order, through a few layers.
TOLERANCE = 1e-5

#: GGUF has no place for windows in upper layers only.
GGUF_CASES = [case for case in CASES if case.name != "qwen2-upper-windows"]

Schedule = Callable[[Sequence[int]], list[Step]]
Logits = Sequence[NDArray[np.float32]]


@dataclass(frozen=True)
class Truth:
    """One model as transformers made and ran it."""

    case: Case
    model: Any
    path: Path
    sequences: list[NDArray[np.int32]]
    logits: list[NDArray[np.float32]]


class MakeTruth(Protocol):
    def __call__(self, name: str, *, is_bf16: bool = False) -> Truth: ...


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> MakeTruth:
    """Each model is made once, for all tests of this file."""
    made: dict[tuple[str, bool], Truth] = {}

    def make(name: str, *, is_bf16: bool = False) -> Truth:
        if (name, is_bf16) not in made:
            case = next(case for case in CASES if case.name == name)
            path = tmp_path_factory.mktemp(name)
            model = save_model(case, path, is_bf16=is_bf16)
            # transformers chooses longrope's factors by the prompt, we by the served context:
            # only the prompt beyond the original context has the same ones.
            lengths = LENGTHS[:1] if name == "phi3-longrope" else LENGTHS
            sequences = random_sequences(lengths)
            logits = model_logits(model, sequences)
            made[name, is_bf16] = Truth(case, model, path, sequences, logits)
        return made[name, is_bf16]

    return make


@pytest.fixture(scope="module", params=["reference", "generic", "best"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """numpy; C++ for any machine; C++ for this machine."""
    if request.param == "reference":
        return create_backend("reference")
    return cpu("generic" if request.param == "generic" else "auto")


def cpu(isa: str = "auto") -> Backend:
    return create_backend("cpu", isa=isa, threads=2)


def run(
    backend: Backend,
    path: Path,
    sequences: Logits,
    schedule: Schedule,
    *,
    max_context: int = 0,
    quantize: str | None = None,
    last_only: bool = False,
) -> list[NDArray[np.float32]]:
    """Open, load and run a checkpoint as the engine does."""
    checkpoint = open_checkpoint(path)
    spec, parameters = describe(checkpoint)
    if max_context:
        spec = spec.with_max_context(max_context)
    weights = load_parameters(checkpoint, parameters, quantize=quantize)
    lengths = [len(sequence) for sequence in sequences]
    model = ModelRun(backend, spec, weights, max_tokens=max(lengths), num_sequences=len(lengths))
    return model.logits(sequences, schedule(lengths), last_only=last_only)


def assert_close(found: Logits, wanted: Logits, tolerance: float) -> None:
    """Largest difference, as a share of the largest logit."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32(backend: Backend, case: Case, truth: MakeTruth) -> None:
    """The logits of transformers, and bitwise the same ones in whichever steps."""
    known = truth(case.name)
    found = run(backend, known.path, known.sequences, whole)
    assert_close(found, known.logits, TOLERANCE)
    for schedule in (chunked, decode):
        again = run(backend, known.path, known.sequences, schedule)
        for ours, first in zip(again, found, strict=True):
            np.testing.assert_array_equal(ours, first)


@pytest.mark.parametrize("name", ["llama3-rope", "qwen3", "gemma2", "gemma3", "phi3"])
def test_bfloat16(backend: Backend, name: str, truth: MakeTruth) -> None:
    known = truth(name, is_bf16=True)
    tolerance = TOLERANCE
    if backend.operand_dtype(WeightFormat.BF16) is DType.BF16:
        # Each of the 4 L + 1 linears rounds its input by up to 2^-9; the errors add up like a random
        # walk, and the sharp attention of random weights amplifies them about fourfold.
        tolerance = 4 * 2**-9 * (4 * known.model.config.num_hidden_layers + 1) ** 0.5
    found = run(backend, known.path, known.sequences[1:], chunked)
    assert_close(found, known.logits[1:], tolerance)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3-longrope"])
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantised_kernels_agree_with_numpy(name: str, quantize: str, truth: MakeTruth) -> None:
    """The integer products are exact, so the kernels and numpy differ by float32 sums only.

    A value on the edge between two int8 codes may fall either way, and what follows it in its
    sequence then differs by about one part in 127: rare, so most rows agree like floats.
    """
    known = truth(name)
    wanted = np.concatenate(
        run(create_backend("reference"), known.path, known.sequences, whole, quantize=quantize)
    )
    for isa in ("generic", "auto"):
        found = np.concatenate(
            run(cpu(isa), known.path, known.sequences, chunked, quantize=quantize)
        )
        differences = np.abs(found - wanted).max(axis=1) / np.abs(wanted).max()
        assert np.median(differences) <= TOLERANCE
        assert differences.max() <= 0.03


@pytest.mark.parametrize("case", GGUF_CASES, ids=lambda case: case.name)
def test_gguf(case: Case, truth: MakeTruth, tmp_path: Path) -> None:
    known = truth(case.name)
    path = write_gguf(tmp_path / "model.gguf", case.architecture, known.model)
    assert_close(run(cpu(), path, known.sequences, chunked), known.logits, TOLERANCE)


def test_longrope_within_the_original_context(truth: MakeTruth) -> None:
    known = truth("phi3-longrope")
    sequences = random_sequences((16, 11))
    wanted = model_logits(known.model, sequences)
    found = run(cpu(), known.path, sequences, whole, max_context=16)
    assert_close(found, wanted, TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_only_the_wanted_rows(name: str, backend: Backend, truth: MakeTruth) -> None:
    """Most prefill steps ask for no logits at all."""
    known = truth(name)
    found = run(backend, known.path, known.sequences, chunked, last_only=True)
    assert_close(found, [logits[-1:] for logits in known.logits], TOLERANCE)
