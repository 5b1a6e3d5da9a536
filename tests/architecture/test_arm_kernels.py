"""Kernels that spell out what Arm does are at least valid C++ for it, where a cross compiler is installed.

`make check-cross` compiles all of them and runs their tests under qemu-user; it takes minutes.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

CSRC = Path(__file__).parents[2] / "csrc"
COMPILER = "aarch64-linux-gnu-g++"
FLAGS = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}")
SETS = {"generic": (), "neon": ("-march=armv8.2-a+dotprod",)}
"""Sets of an Arm build and the flags that CMakeLists.txt gives them."""


@pytest.mark.skipif(
    shutil.which(COMPILER) is None or platform.machine() in ("aarch64", "arm64"),
    reason=f"{COMPILER} is not installed, or this machine is one itself",
)
@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("source", ["attention/attention.cc", "gemm/quantized.cc"])
def test_kernels_compile_for_arm(source: str, isa: str) -> None:
    names = (f"-DHR_ISA={isa}", f"-DHR_ISA_{isa.upper()}=1")
    done = subprocess.run(
        [COMPILER, *FLAGS, *names, *SETS[isa], str(CSRC / source)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
