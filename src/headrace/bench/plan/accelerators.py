"""What accelerators can do: memory, bandwidth, dense arithmetic, by their makers' data sheets."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.bench.plan.options import PlanOptions
from headrace.config.units import parse_size
from headrace.core.errors import ConfigError

_COUNTED = re.compile(r"(?:(\d{1,4})x)?([a-z0-9-]+)", re.IGNORECASE)


class Accelerator(NamedTuple):
    """One of them."""

    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second."""
    flops: float
    """Dense bf16 or f16, accumulated in f32, a second."""
    fp8_flops: float
    """Dense fp8, a second; those of 16 bits where it has no fp8."""
    source: str
    """The published document that says so, or where else the figures are from."""


def _of(
    memory: float, bandwidth: float, tflops: float, fp8: float | None, source: str
) -> Accelerator:
    return Accelerator(memory * 1e9, bandwidth * 1e9, tflops * 1e12, (fp8 or tflops) * 1e12, source)


#: Memory in GB, bandwidth in GB/s, TFLOPS in 16 bits and in fp8 (None: it has none). Data sheets that give figures with
#: sparsity say that dense ones are half of them.
ACCELERATORS: Final[Mapping[str, Accelerator]] = {
    "t4": _of(16, 320, 65, None, "NVIDIA T4 data sheet"),
    "l4": _of(24, 300, 121, 242.5, "NVIDIA L4 data sheet"),
    "a10": _of(24, 600, 125, None, "NVIDIA A10 data sheet"),
    "rtx4090": _of(24, 1008, 165.2, 330.3, "NVIDIA Ada GPU architecture white paper, appendix A"),
    "l40s": _of(48, 864, 362, 733, "NVIDIA L40S data sheet"),
    "a100-40gb": _of(40, 1555, 312, None, "NVIDIA A100 data sheet"),
    "a100": _of(80, 2039, 312, None, "NVIDIA A100 data sheet (SXM)"),
    "h100-pcie": _of(80, 2000, 756, 1513, "NVIDIA H100 data sheet (PCIe)"),
    "h100": _of(80, 3350, 989, 1979, "NVIDIA H100 data sheet (SXM)"),
    "h200": _of(141, 4800, 989, 1979, "NVIDIA H200 data sheet (SXM)"),
    "b200": _of(180, 8000, 2250, 4500, "NVIDIA DGX B200 data sheet, an eighth"),
    "mi300x": _of(192, 5300, 1307.4, 2614.9, "AMD Instinct MI300X data sheet"),
}


class Machine(NamedTuple):
    """What one replica has."""

    name: str
    number: int
    each: Accelerator


def machine_of(options: PlanOptions) -> Machine:
    """As the flags say. Raises ConfigError."""
    match = _COUNTED.fullmatch(options.gpus.strip())
    if match is None or match[1] == "0":
        raise ConfigError(
            f"--gpus takes a name or a number and a name, such as 2xh100, not '{options.gpus[:40]}'."
        )
    count, name = int(match[1] or 1), match[2].lower()
    each = ACCELERATORS.get(name)
    if each is None and name != "cpu":
        raise ConfigError(
            f"--gpus: '{name[:40]}' is not known; these are: cpu, {', '.join(ACCELERATORS)}."
        )
    if each is None:
        each = _this_machine(options)
    memory = each.memory if options.memory is None else _bytes(options.memory)
    bandwidth = each.bandwidth if options.bandwidth is None else options.bandwidth * 1e9
    flops = (each.flops, each.fp8_flops)
    if options.tflops is not None:
        flops = (options.tflops * 1e12,) * 2
    source = each.source
    if (memory, bandwidth, *flops) != each[:4]:
        source = "as given" if name == "cpu" else f"{source}, changed by flags"
    return Machine(name, count, Accelerator(memory, bandwidth, *flops, source))


def _bytes(text: str) -> float:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--memory: {error}") from None
    if size <= 0:
        raise ConfigError("--memory must be above 0.")
    return float(size)


def _this_machine(options: PlanOptions) -> Accelerator:
    """Measured, as far as it is not given."""
    from headrace.bench.plan import this_machine

    flops = 1.0 if options.tflops is not None else this_machine.flops()
    return Accelerator(
        memory=1.0 if options.memory is not None else float(this_machine.free_memory()),
        bandwidth=1.0 if options.bandwidth is not None else this_machine.bandwidth(),
        flops=flops,
        fp8_flops=flops,
        source="measured with numpy, float32",
    )
