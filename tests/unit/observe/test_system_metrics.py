"""What the operating system and devices say: read where they are, silent where they are not."""

import os
import types

from headrace.observe import system_metrics as table
from headrace.observe.gpus import Gpus
from headrace.observe.labels import BoundedSeries
from headrace.observe.metric import INTERVAL
from headrace.observe.metrics import Histogram, Metrics
from headrace.observe.system import SystemMeter, Watched, use_of


class LostError(Exception):
    pass


def fake_nvml(**changes):
    def refuse(*_):
        raise LostError

    nvml = types.SimpleNamespace(
        NVMLError=LostError,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksEventReasonSwPowerCap=4,
        nvmlClocksEventReasonSwThermalSlowdown=32,
        nvmlClocksThrottleReasonHwSlowdown=8,
        nvmlClocksThrottleReasonHwThermalSlowdown=64,
        nvmlClocksThrottleReasonHwPowerBrakeSlowdown=128,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda _: types.SimpleNamespace(gpu=70),
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(used=3, total=9),
        nvmlDeviceGetTemperature=lambda _handle, _kind: 61,
        nvmlDeviceGetPowerUsage=refuse,
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 1,
    )
    for name, value in changes.items():
        setattr(nvml, name, value)
    return nvml


def test_a_device_tells_what_it_can():
    (gpu,) = Gpus(fake_nvml).read()
    assert (gpu.utilization, gpu.memory_used, gpu.memory_total) == (0.7, 3, 9)
    assert (gpu.temperature, gpu.power, gpu.is_throttled) == (61.0, None, False)


def test_heat_is_told_and_idleness_is_not():
    hot = fake_nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda _: 33)
    assert Gpus(lambda: hot).read()[0].is_throttled is True


def test_without_a_driver_there_are_no_devices():
    assert Gpus(lambda: None).read() == []


def test_a_driver_that_fails_tells_nothing():
    def lost():
        raise LostError

    assert Gpus(lambda: fake_nvml(nvmlDeviceGetCount=lost)).read() == []


def test_processes_are_told_and_those_that_are_gone_are_not():
    metrics = Metrics()
    meter = SystemMeter(metrics, Gpus(fake_nvml))
    meter.write([Watched("server", os.getpid()), Watched("engine", None), Watched("x", 2**30)])
    assert metrics.value(table.PROCESS_MEMORY, ("", "server")) > 1_000_000
    assert metrics.value(table.PROCESS_CPU, ("", "server")) > 0
    assert len(list(metrics.values(table.PROCESS_CPU))) == 1
    assert metrics.value(table.GPU_USE, ("0",)) == 0.7
    assert metrics.is_empty(table.GPU_POWER)
    assert use_of(2**30) is None


def test_series_are_bounded_whatever_tenants_and_models_there_are():
    series = BoundedSeries(max_series=3)
    seen = {series.labels(f"m{i % 50}", f"t{i}", "standard") for i in range(5000)}
    assert len(seen) == 7
    assert series.labels("m0", "t0", "standard") == ("m0", "t0", "standard")
    assert series.labels("m0", "t5001", "standard")[1] == "other"
    assert series.labels("m49", "t5001", "standard") == ("other", "other", "other")


def test_a_histogram_takes_in_one_with_finer_bounds():
    fine, coarse = Histogram((0.1, 0.2, 0.3, 0.4)), Histogram((0.2, 0.4))
    for value in (0.05, 0.15, 0.2, 0.25, 0.4, 9.0):
        fine.observe(value)
    coarse.add(fine)
    assert coarse.counts == [3, 2, 1]
    assert coarse.total == fine.total
    assert tuple(sorted(INTERVAL)) == INTERVAL
