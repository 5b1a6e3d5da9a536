"""Which kernels serve this machine. Back ends are imported when they are chosen."""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from headrace.config import env
from headrace.core.errors import ConfigError
from headrace.kernels import topology

if TYPE_CHECKING:
    from headrace.kernels.cpu._native import CpuFeatures
    from headrace.kernels.ops import Backend

BACKENDS = ("cpu", "reference")
ISAS = ("generic", "avx2", "avx512", "amx", "neon")

_OPS = (
    "embed",
    "rms_norm",
    "layer_norm",
    "add_positions",
    "convert",
    "activation",
    "gated_activation",
    "rope_table",
    "rotate_and_store",
    "attention",
    "gather_outputs",
    "soft_cap",
    "sample",
)


class Choice(NamedTuple):
    """One row of `headrace doctor`."""

    op: str
    implementation: str
    reason: str


def create_backend(name: str = "auto", isa: str = "auto", threads: int = 0) -> "Backend":
    """The back end `name` (auto, cpu, reference) with its kernels for `isa` and `threads`.

    0 threads takes what affinity and cgroups allow. HEADRACE_ISA replaces an `isa` of auto. Raises
    ConfigError for what does not exist or what this machine lacks.
    """
    backend: Backend
    if _backend_name(name) == "reference":
        backend = import_module("headrace.kernels.reference.backend").ReferenceBackend()
    else:
        chosen = _resolve_isa(isa, _detect_cpu())
        num_threads = threads or topology.detect().num_threads
        backend = import_module("headrace.kernels.cpu.backend").CpuBackend(chosen, num_threads)
    return backend


def explain(name: str = "auto", isa: str = "auto", threads: int = 0) -> list[Choice]:
    """What `create_backend` would choose with the same arguments, and why."""
    if _backend_name(name) == "reference":
        return [Choice("every op", "numpy", "the reference back end was asked for")]
    cpu = _detect_cpu()
    chosen = _resolve_isa(isa, cpu)
    machine = topology.detect()
    quota = "no CPU quota" if machine.cpu_quota is None else f"quota {machine.cpu_quota:g}"
    counted = f"{machine.num_cpus} CPUs on {machine.num_cores} cores, {quota}"
    asked = _asked_isa(isa)
    why = "best that the CPU has" if asked == "auto" else f"{asked} was asked for"
    return [
        Choice("instruction set", chosen, f"{why} ({_features(cpu)})"),
        Choice("threads", str(threads or machine.num_threads), "given" if threads else counted),
        *_linear_choices(chosen, cpu),
        *(Choice(op, f"{chosen}, 16 lanes", "same source for every set") for op in _OPS),
    ]


def _backend_name(name: str) -> str:
    if name not in ("auto", *BACKENDS):
        raise ConfigError(f"There is no back end '{name}'; there are auto, {', '.join(BACKENDS)}.")
    return "cpu" if name == "auto" else name


def _detect_cpu() -> "CpuFeatures":
    try:
        native = import_module("headrace.kernels.cpu._native")
    except ImportError as error:
        raise ConfigError(
            f"The CPU kernels are not built ({error}); run `make install`, or use the back end "
            "'reference'."
        ) from error
    features: CpuFeatures = native.detect_cpu()
    return features


def _asked_isa(isa: str) -> str:
    return (env.get("HEADRACE_ISA") or "auto") if isa == "auto" else isa


def _available(cpu: "CpuFeatures") -> dict[str, bool]:
    return {
        "generic": True,
        "avx2": cpu.has_avx2,
        "avx512": cpu.has_avx512,
        "amx": cpu.has_amx,
        "neon": cpu.has_neon,
    }


def _resolve_isa(isa: str, cpu: "CpuFeatures") -> str:
    asked = _asked_isa(isa)
    available = _available(cpu)
    if asked == "auto":
        return [name for name in ISAS if available[name]][-1]
    if asked not in ISAS:
        raise ConfigError(f"There is no instruction set '{asked}'; there are {', '.join(ISAS)}.")
    if not available[asked]:
        raise ConfigError(f"This machine has no {asked}; it has {_features(cpu)}.")
    return asked


def _features(cpu: "CpuFeatures") -> str:
    names = [name for name, present in _available(cpu).items() if present]
    return ", ".join([*names, "avx512_bf16"] if cpu.has_avx512_bf16 else names)


def _linear_choices(isa: str, cpu: "CpuFeatures") -> list[Choice]:
    integer = {
        "generic": ("plain C++", "no vector instructions are assumed"),
        "avx2": ("vpmaddubsw", "8-bit products summed in 16 bits without saturation"),
        "avx512": ("vpdpbusd", "VNNI found"),
        "amx": ("tdpbsud from 16 rows on, else vpdpbusd", "AMX-INT8 found and allowed"),
        "neon": ("sdot", "dot products of bytes found"),
    }[isa]
    floating = "fma, f32 rows" if isa != "generic" else "multiply and add, f32 rows"
    has_dot = isa in ("avx512", "amx") and cpu.has_avx512_bf16
    bf16 = ("vdpbf16ps, bf16 rows", "AVX512_BF16 found") if has_dot else (floating, "no bf16 dot")
    return [
        Choice("linear w4g32, w8g32, w8g16", f"{integer[0]}, int8 rows", integer[1]),
        Choice("linear bf16", *bf16),
        Choice("linear f16, f32", floating, "weights widened as they are read"),
    ]
