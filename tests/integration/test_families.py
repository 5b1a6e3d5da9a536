"""Every family gives the logits of transformers, whichever way a prompt is cut into steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.gguf_models import write_gguf
from tests.support.hf_families import CASES, Case, model_logits, random_sequences, save_model
from tests.support.model_run import ModelRun, Step, chunked, decode, whole
from tests.support.plain_weights import PlainReferenceBackend, load_plain

from headrace.modeling.registry import describe
from headrace.modeling.spec import ModelSpec
from headrace.modeling.weights.checkpoint import Checkpoint, open_checkpoint

#: Several sequences a batch, longer than the windows and than one block.
LENGTHS = (37, 9, 1, 21)

#: float32 against float32: sums of some hundred products in another order, through a few layers.
TOLERANCE = 1e-5

SCHEDULES: Sequence[Callable[[Sequence[int]], list[Step]]] = (whole, chunked, decode)

#: GGUF has no place for windows in upper layers only.
GGUF_CASES = [case for case in CASES if case.name != "qwen2-upper-windows"]


@dataclass(frozen=True)
class Truth:
    """One model as transformers made and ran it."""

    case: Case
    model: Any
    path: Path
    sequences: list[NDArray[np.int32]]
    logits: list[NDArray[np.float32]]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Truth]:
    """Each model is made once, for all tests of this file."""
    made: dict[str, Truth] = {}

    def make(case: Case) -> Truth:
        if case.name not in made:
            path = tmp_path_factory.mktemp(case.name)
            model = save_model(case, path)
            # transformers chooses longrope's factors by the prompt, we by the served context:
            # only the prompt beyond the original context has the same ones.
            lengths = LENGTHS[:1] if case.name == "phi3-longrope" else LENGTHS
            sequences = random_sequences(lengths)
            made[case.name] = Truth(case, model, path, sequences, model_logits(model, sequences))
        return made[case.name]

    return make


def run_plain(
    checkpoint: Checkpoint,
    sequences: Sequence[NDArray[np.int32]],
    schedule: Callable[[Sequence[int]], list[Step]],
    *,
    adjust: Callable[[ModelSpec], ModelSpec] = lambda spec: spec,
    last_only: bool = False,
) -> list[NDArray[np.float32]]:
    spec, parameters = describe(checkpoint)
    lengths = [len(sequence) for sequence in sequences]
    run = ModelRun(
        PlainReferenceBackend(),
        adjust(spec),
        load_plain(checkpoint, parameters),
        max_tokens=max(lengths),
        num_sequences=len(lengths),
    )
    return run.logits(sequences, schedule(lengths), last_only=last_only)


def assert_close(
    found: Sequence[NDArray[np.float32]], wanted: Sequence[NDArray[np.float32]], tolerance: float
) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_safetensors_match_transformers(
    case: Case,
    schedule: Callable[[Sequence[int]], list[Step]],
    truth: Callable[[Case], Truth],
) -> None:
    known = truth(case)
    found = run_plain(open_checkpoint(known.path), known.sequences, schedule)
    assert_close(found, known.logits, TOLERANCE)


@pytest.mark.parametrize("case", GGUF_CASES, ids=lambda case: case.name)
def test_gguf_matches_transformers(
    case: Case, truth: Callable[[Case], Truth], tmp_path: Path
) -> None:
    known = truth(case)
    path = write_gguf(tmp_path / "model.gguf", case.architecture, known.model)
    found = run_plain(open_checkpoint(path), known.sequences, chunked)
    assert_close(found, known.logits, TOLERANCE)


def test_longrope_within_the_original_context(truth: Callable[[Case], Truth]) -> None:
    case = next(case for case in CASES if case.name == "phi3-longrope")
    known = truth(case)
    sequences = random_sequences((32, 11))
    wanted = model_logits(known.model, sequences)
    found = run_plain(
        open_checkpoint(known.path), sequences, whole, adjust=lambda spec: spec.with_max_context(32)
    )
    assert_close(found, wanted, TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_only_the_wanted_rows(name: str, truth: Callable[[Case], Truth]) -> None:
    """Most prefill steps ask for no logits at all."""
    known = truth(next(case for case in CASES if case.name == name))
    found = run_plain(open_checkpoint(known.path), known.sequences, chunked, last_only=True)
    assert_close(found, [logits[-1:] for logits in known.logits], TOLERANCE)
