"""What this machine can do: bytes read a second, and operations a second of our 8-bit kernel. Takes about a second."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headrace.bench.analyze.values import Hardware
from headrace.core.clock import Clock

#: Words of 8 bytes for each thread: more than any last-level cache.
_WORDS: Final = 12 * 1024 * 1024
_ROUNDS: Final = 4
_ROWS, _OUTPUTS, _INPUTS = 256, 2048, 2048


def measure_machine(clock: Clock) -> Hardware:
    """Of all cores that the server would use. Raises HeadraceError where the kernels cannot be loaded."""
    from headrace.kernels.dispatch import create_backend

    backend = create_backend("cpu")
    memory = _bandwidth(backend.num_threads, clock)
    compute = _operations(clock)
    return Hardware(
        memory=memory,
        compute=compute,
        source=f"measured here: {memory / 1e9:.1f} GB/s, {compute / 1e9:.0f} Gop/s in int8",
    )


def _bandwidth(num_threads: int, clock: Clock) -> float:
    """Best of some rounds: every thread reads an array of its own; numpy lets go of the lock meanwhile.

    Of what numpy can do over an array, joining bits comes nearest to the machine's limit.
    """
    import numpy as np

    arrays = [np.ones(_WORDS // num_threads, np.uint64) for _ in range(num_threads)]
    num_bytes = sum(array.nbytes for array in arrays)
    best = 0.0
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(_ROUNDS):
            start = clock.monotonic()
            list(pool.map(lambda array: int(np.bitwise_or.reduce(array)), arrays))
            best = max(best, num_bytes / max(1e-9, clock.monotonic() - start))
    return best


def _operations(clock: Clock) -> float:
    """Best of some passes of a large linear layer, as prefill has them."""
    import numpy as np

    from headrace.kernels.dispatch import create_backend
    from headrace.kernels.formats import QuantizedMatrix, WeightFormat
    from headrace.kernels.packing import pack
    from headrace.kernels.values import DType, KVLayout, Rows, StepInputs, StepLimits

    backend = create_backend("cpu")
    kind = WeightFormat.W8G32
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (_OUTPUTS, _INPUTS), dtype=np.uint8)
    scales = np.full((_OUTPUTS, _INPUTS // kind.group_size), 0.01, np.float32)
    weight = pack(QuantizedMatrix(kind, codes, scales, None, 0))
    layout = KVLayout(1, 1, 16, 16, DType.F32, (0,), (1,))
    recorder = backend.recorder(StepLimits(_ROWS, _ROWS), backend.create_kv_cache(layout))
    operand = recorder.buffer(Rows.TOKENS, _INPUTS, recorder.operand_dtype(kind))
    out = recorder.buffer(Rows.TOKENS, _OUTPUTS)
    recorder.linear(operand, backend.load_weight(weight), out)
    program = recorder.finish()
    inputs = StepInputs(
        token_ids=np.zeros(_ROWS, np.int32),
        positions=np.zeros(_ROWS, np.int32),
        query_starts=np.array([0, _ROWS], np.int32),
        key_starts=np.zeros(1, np.int32),
        slots=np.zeros(1, np.int32),
        block_tables=(np.zeros((1, 1), np.int32),),
        output_rows=np.zeros(0, np.int32),
    )
    best = 0.0
    for _ in range(3 * _ROUNDS):
        start = clock.monotonic()
        program.run(inputs)
        best = max(best, 2.0 * _ROWS * _OUTPUTS * _INPUTS / max(1e-9, clock.monotonic() - start))
    return best
