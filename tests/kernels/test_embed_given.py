"""The op embed where some tokens are given as vectors."""

import numpy as np
import pytest
from tests.support.op_run import ISAS, NO_KEYS, Batch, cpu, reference

from headrace.core.errors import KernelError
from headrace.kernels.packing import pack
from headrace.kernels.values import Rows, StepLimits

WIDTH, VOCAB, COUNT = 48, 40, 30
TABLE = np.random.default_rng(1).standard_normal((VOCAB, WIDTH)).astype(np.float32)
GIVEN = np.random.default_rng(2).standard_normal((6, WIDTH)).astype(np.float32)


def run(backend, token_ids, embeddings):
    recorder = backend.recorder(StepLimits(COUNT, 1), backend.create_kv_cache(NO_KEYS))
    out = recorder.buffer(Rows.TOKENS, WIDTH)
    recorder.embed(backend.load_weight(pack(TABLE)), out, scale=3.0)
    program = recorder.finish()
    inputs = Batch((COUNT,), (0,), (np.zeros((1, 9), np.int32),)).step_inputs()
    inputs.token_ids, inputs.embeddings = np.array(token_ids, np.int32), embeddings
    program.run(inputs)
    return np.array(program.read(out, COUNT))


@pytest.mark.parametrize("name", ["reference", *ISAS])
def test_negative_ids_are_rows_as_they_are(name):
    backend = reference() if name == "reference" else cpu(name)
    ids = [*range(20), -1, -6, -2, -1, 5, -3, 0, -5, -4, 7]
    found = run(backend, ids, GIVEN)
    expected = [GIVEN[-1 - i] if i < 0 else TABLE[i] * np.float32(3) for i in ids]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["reference", ISAS[-1]])
@pytest.mark.parametrize(
    ("lowest", "embeddings"), [(-7, GIVEN), (-1, None), (-1, GIVEN[:, :-1].copy())]
)
def test_what_is_not_given_is_refused(name, lowest, embeddings):
    backend = reference() if name == "reference" else cpu(name)
    with pytest.raises((KernelError, ValueError), match=r"embeddings|token_ids"):
        run(backend, [lowest] * COUNT, embeddings)
