"""Metrics of processes and devices: a part of the catalogue."""

from headrace.observe.metric import Kind, Metric

PROCESS_CPU = Metric(
    "headrace_process_cpu_seconds_total", Kind.COUNTER, "seconds",
    "Processor time, user and system, by process: server, engine (with its model) or gateway.", ("process",),
)  # fmt: skip
PROCESS_MEMORY = Metric(
    "headrace_process_resident_memory_bytes", Kind.GAUGE, "bytes",
    "Memory that a process has in RAM; mapped weights count in each process that has touched them.", ("process",),
)  # fmt: skip
PROCESS_THREADS = Metric(
    "headrace_process_threads", Kind.GAUGE, "threads", "Threads of a process.", ("process",),
)  # fmt: skip
CPUS = Metric(
    "headrace_cpus", Kind.GAUGE, "cpus", "Processors that this process may run on.", server_wide=True,
)  # fmt: skip

# NVIDIA devices, where there are any and `headrace[nvml]` is installed ------------------------------
GPU_USE = Metric(
    "headrace_gpu_utilization_ratio", Kind.GAUGE, "ratio",
    "Share of the last moment in which the device ran something.", ("gpu",), server_wide=True,
)  # fmt: skip
GPU_MEMORY_USED = Metric(
    "headrace_gpu_memory_used_bytes", Kind.GAUGE, "bytes", "Memory in use.", ("gpu",), server_wide=True,
)  # fmt: skip
GPU_MEMORY_TOTAL = Metric(
    "headrace_gpu_memory_total_bytes", Kind.GAUGE, "bytes", "Memory that there is.", ("gpu",), server_wide=True,
)  # fmt: skip
GPU_TEMPERATURE = Metric(
    "headrace_gpu_temperature_celsius", Kind.GAUGE, "celsius", "Temperature of the chip.", ("gpu",),
    server_wide=True,
)  # fmt: skip
GPU_POWER = Metric(
    "headrace_gpu_power_watts", Kind.GAUGE, "watts", "Power that the device draws.", ("gpu",), server_wide=True,
)  # fmt: skip
GPU_THROTTLED = Metric(
    "headrace_gpu_throttled", Kind.GAUGE, "boolean", "1: heat or power slows the device down.", ("gpu",),
    server_wide=True,
)  # fmt: skip
