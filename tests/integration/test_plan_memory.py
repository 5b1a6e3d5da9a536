"""What a plan says of memory, against what an engine reports that is really there."""

from pathlib import Path

import pytest
from tests.support.real_engine import RealEngine
from tests.support.tiny_gemma import make_tiny_gemma
from tests.support.tiny_models import make_tiny_llama

from headrace.bench.plan.answer import Plan
from headrace.bench.plan.options import PlanOptions
from headrace.bench.plan.run import plan

#: Nothing of the machine is measured.
FAST = {"gpus": "cpu", "memory": "8GiB", "bandwidth": 10.0, "tflops": 1.0}


def check(model: Path | str, quantize: str | None = None, kv_dtype: str = "auto") -> Plan:
    found = plan(
        str(model),
        PlanOptions(
            **FAST,  # type: ignore[arg-type]
            context=256,
            output_tokens=16,
            slo="ttft=1h,tpot=1h",
            weights=quantize or "file",  # type: ignore[arg-type]
            kv_dtype=kv_dtype,  # type: ignore[arg-type]
        ),
    )
    with RealEngine(model, quantize=quantize, kv_dtype=kv_dtype) as engine:  # type: ignore[arg-type]
        info = engine.built.info
    assert found.weight_bytes == info.weight_bytes
    assert found.step_bytes == info.step_bytes > 0
    assert found.num_parameters == pytest.approx(info.parameters, rel=0.01)
    return found


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_and_activations_are_those_of_the_engine(
    tmp_path: Path, dtype: str, is_tied: bool
) -> None:
    check(make_tiny_llama(tmp_path / "llama", dtype=dtype, is_tied=is_tied))


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_weights_that_the_engine_quantises_are_counted_so(tmp_path: Path, quantize: str) -> None:
    check(make_tiny_llama(tmp_path / "llama"), quantize=quantize)


def test_a_family_with_windows_takes_what_is_planned(tmp_path: Path) -> None:
    check(make_tiny_gemma(tmp_path / "gemma"))


@pytest.mark.parametrize("kv_dtype", ["auto", "f32", "f16", "int8"])
def test_a_token_of_kv_takes_what_the_engine_takes(tmp_path: Path, kv_dtype: str) -> None:
    model = make_tiny_llama(tmp_path / "llama")
    found = check(model, kv_dtype=kv_dtype)
    with RealEngine(model, kv_dtype=kv_dtype) as engine:  # type: ignore[arg-type]
        info = engine.built.info
    assert found.kv_bytes_per_token == info.kv_bytes / (info.num_blocks * info.block_size)


def test_as_many_requests_fit_as_planned(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "llama")
    found = check(model)
    size = int(found.kv_bytes_per_sequence) * 7
    with RealEngine(model, kv_memory=str(size)) as engine:
        info = engine.built.info
    assert info.num_blocks * info.block_size == 7 * 256


def test_smollm2_takes_what_is_planned() -> None:
    """The whole model: weights of two file types, packed."""
    found = check("smollm2-135m")
    assert found.weight_bytes == pytest.approx(96.6e6, rel=0.01)
