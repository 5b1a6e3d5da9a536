"""What `headrace plan` can be told."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class PlanOptions(Struct, frozen=True, kw_only=True):
    """One question: a model, a machine, and how many use it."""

    gpus: str = "cpu"
    """Accelerators of one replica: a name, or a number and a name, such as 2xh100; cpu is this machine. `--gpus list`
    shows the names."""
    context: Annotated[int, Meta(ge=2)] = 4096
    """Tokens of prompt and answer together, of one request."""
    output_tokens: Annotated[int, Meta(ge=1)] = 256
    """Those of them that are the answer."""
    users: Annotated[int, Meta(ge=1)] = 1
    """Requests that run at once."""
    slo: str = "ttft=2s,tpot=100ms"
    """What a request may take: ttft and tpot."""
    weights: Literal["file", "f32", "bf16", "f16", "fp8", "int8", "int4"] = "file"
    """How weights are kept: as the files have them, else f32, bf16, f16, fp8, int8 or int4."""
    kv_dtype: Literal["auto", "f32", "bf16", "f16", "int16", "int8"] = "auto"
    """How keys and values are kept: f32, bf16, f16, int16 or int8; auto: int16 on CPUs, as our engine has it, else f16."""
    tensor_parallel: Annotated[int, Meta(ge=0)] = 0
    """Accelerators that share each layer; 0: as many as a replica has."""
    utilization: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.9
    """Share of the memory for weights and keys and values; the rest is for activations."""
    memory: str | None = None
    """Memory of one accelerator, such as 80GB; default the table's, or what is free on this machine."""
    bandwidth: Annotated[float, Meta(gt=0.0)] | None = None
    """Its memory bandwidth in GB/s; default the table's, or measured."""
    tflops: Annotated[float, Meta(gt=0.0)] | None = None
    """Its dense TFLOPS, whatever the weights; default the table's, of 16 bits or, with --weights fp8, of 8, or measured."""
    memory_efficiency: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.75
    """Share of the bandwidth that is reached."""
    compute_efficiency: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.5
    """Share of the TFLOPS that is reached."""
    profile: str | None = None
    """Step times that were measured (`headrace simulate --calibrate`), a file or a built-in one; they stand instead of
    the roofline."""
    hourly_cost: Annotated[float, Meta(ge=0.0)] | None = None
    """What one accelerator costs an hour."""
    json: bool = False
    """Print JSON."""
