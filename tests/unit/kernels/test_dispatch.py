import sys

import pytest

from headrace.core.errors import ConfigError, KernelError
from headrace.kernels import dispatch
from headrace.kernels.cpu import _native
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.formats import WeightFormat
from headrace.kernels.values import DType


@pytest.fixture(autouse=True)
def _no_override(monkeypatch):
    monkeypatch.delenv("HEADRACE_ISA", raising=False)


def test_auto_takes_the_best_set():
    cpu = _native.detect_cpu()
    best = "avx512" if cpu.has_avx512 else "avx2" if cpu.has_avx2 else "generic"
    best = "amx" if cpu.has_amx else best
    best = "neon" if cpu.has_neon else best
    backend = dispatch.create_backend(threads=1)
    assert (backend.name, backend.isa, backend.num_threads) == ("cpu", best, 1)


def test_the_environment_replaces_auto_but_not_a_choice(monkeypatch):
    monkeypatch.setenv("HEADRACE_ISA", "generic")
    assert dispatch.create_backend(threads=1).isa == "generic"
    monkeypatch.setenv("HEADRACE_ISA", "pdp11")
    assert dispatch.create_backend(isa="generic", threads=1).isa == "generic"
    with pytest.raises(ConfigError, match="pdp11"):
        dispatch.create_backend(threads=1)


def test_the_reference_needs_no_extension(monkeypatch):
    monkeypatch.setitem(sys.modules, "headrace.kernels.cpu._native", None)
    assert dispatch.create_backend("reference").name == "reference"
    with pytest.raises(ConfigError, match="make install"):
        dispatch.create_backend()


def test_what_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="cuda"):
        dispatch.create_backend("cuda")
    with pytest.raises(ConfigError, match="avx9"):
        dispatch.explain(isa="avx9")


def test_a_missing_set_is_refused(monkeypatch):
    class Bare:
        has_avx2 = has_avx512 = has_avx512_bf16 = has_amx = has_neon = False

    monkeypatch.setattr(_native, "detect_cpu", Bare)
    with pytest.raises(ConfigError, match="no avx2"):
        dispatch.create_backend(isa="avx2")
    assert dispatch.explain()[0].implementation == "generic"


@pytest.mark.parametrize("threads", [-1, 5000])
def test_impossible_pools_are_refused(threads):
    with pytest.raises(KernelError):
        CpuBackend("generic", threads)


def test_every_op_is_explained():
    rows = {choice.op: choice for choice in dispatch.explain(threads=3)}
    assert rows["threads"].implementation == "3"
    assert "linear bf16" in rows
    assert "attention" in rows
    assert all(choice.implementation and choice.reason for choice in rows.values())
    assert [choice.op for choice in dispatch.explain("reference")] == ["every op"]


def test_operand_dtypes_follow_the_instruction_set():
    generic = CpuBackend("generic", 1)
    assert generic.operand_dtype(WeightFormat.W4G32) is DType.Q8
    assert generic.operand_dtype(WeightFormat.BF16) is DType.F32
    if _native.detect_cpu().has_avx512_bf16:
        assert CpuBackend("avx512", 1).operand_dtype(WeightFormat.BF16) is DType.BF16


def test_amx_is_preferred_but_can_be_left_out(monkeypatch):
    class Tiled:
        has_avx2 = has_avx512 = has_avx512_bf16 = has_amx = True
        has_neon = False

    monkeypatch.setattr(_native, "detect_cpu", Tiled)
    rows = {choice.op: choice for choice in dispatch.explain()}
    assert rows["instruction set"].implementation == "amx"
    assert "tdpbsud" in rows["linear w4g32, w8g32, w8g16"].implementation
    assert "vdpbf16ps" in rows["linear bf16"].implementation
    assert dispatch.explain(isa="avx512")[0].implementation == "avx512"
