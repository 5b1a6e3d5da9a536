"""What NVIDIA's devices say of themselves, through NVML; nothing where there are none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

#: There where the driver is loaded.
_DRIVER = Path("/proc/driver/nvidia/version")

T = TypeVar("T")


class Gpu(Struct, frozen=True, kw_only=True):
    """One device, now. None: it does not tell."""

    index: int
    utilization: float | None
    """0..1."""
    memory_used: int | None
    """Bytes."""
    memory_total: int | None
    temperature: float | None
    """°C."""
    power: float | None
    """Watts."""
    is_throttled: bool | None


class Gpus:
    """Every device that this process sees. NVML is loaded at the first `read`, and only where a driver is."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        """`load` gives the module `pynvml`, or None; for tests."""
        self._load = load or _nvml
        self._nvml: Any = None
        self._is_open = False

    def read(self) -> list[Gpu]:
        """Never raises: a device that is lost tells nothing."""
        if not self._is_open:
            self._is_open = True
            self._nvml = self._load()
        if self._nvml is None:
            return []
        count = self._told(self._nvml.nvmlDeviceGetCount) or 0
        return [self._device(index) for index in range(count)]

    def _device(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = self._told(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        use = self._told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        memory = self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        reasons = self._told(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        power = self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return Gpu(
            index=index,
            utilization=None if use is None else use / 100,
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            temperature=self._told(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            power=None if power is None else power / 1000,
            is_throttled=None if reasons is None else bool(reasons & _slowdowns(nvml)),
        )

    def _told(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def _slowdowns(nvml: Any) -> int:
    """Reasons for low clocks that are heat or power, and not idleness or settings."""
    return int(
        nvml.nvmlClocksEventReasonSwPowerCap
        | nvml.nvmlClocksEventReasonSwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwSlowdown
        | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )


def _nvml() -> Any:
    if not _DRIVER.exists():
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
