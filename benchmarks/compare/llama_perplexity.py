"""`llama-perplexity`, built once from the llama.cpp sources that the `llama-cpp-python` sdist carries.

The program and nothing else is built, for this machine's instruction set, at low priority; it takes several
minutes and is kept in the cache.

    python benchmarks/quality/llama_perplexity.py          prints where the program is
"""

import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.config.env import cache_home

SDIST = "llama-cpp-python==0.3.36"
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
_FINAL = re.compile(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)")
_CHUNKS = re.compile(r"over (\d+) chunks")


@dataclass(frozen=True)
class Estimate:
    """What llama-perplexity prints at its end."""

    perplexity: float
    standard_error: float
    chunks: int


def binary() -> Path:
    """The program, built if it is not in the cache. Raises CalledProcessError if a step fails."""
    target = cache_home() / "bench" / f"llama-perplexity-{SDIST.rpartition('=')[2]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            built = _build(Path(scratch))
            built.replace(target)
    return target


def _build(scratch: Path) -> Path:
    download = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    download += ["--no-binary", ":all:", "--no-deps", "--no-build-isolation", "-d", str(scratch)]
    subprocess.run([*download, SDIST], check=True)
    with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
        archive.extractall(scratch, filter="data")
    source = next(scratch.glob("llama_cpp_python-*/vendor/llama.cpp"))
    build = scratch / "build"
    options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
    configure = ["cmake", "-S", str(source), "-B", str(build), *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    make = ["nice", "-n", "10", "cmake", "--build", str(build), "-j1", "--target"]
    subprocess.run([*make, "llama-perplexity"], check=True, stdout=subprocess.DEVNULL)
    return build / "bin" / "llama-perplexity"


def parse(output: str) -> Estimate:
    """The final estimate. Raises ValueError where the output has none."""
    final, chunks = _FINAL.search(output), _CHUNKS.search(output)
    if final is None or chunks is None:
        raise ValueError(f"llama-perplexity gave no estimate: …{output[-500:]}")
    return Estimate(float(final[1]), float(final[2]), int(chunks[1]))


def measure(model: Path, text: Path, *, context: int, chunks: int, threads: int) -> Estimate:
    """Perplexity of the model on the first chunks of the text, as llama.cpp computes it."""
    command = [str(binary()), "-m", str(model), "-f", str(text), "-c", str(context)]
    command += ["--chunks", str(chunks), "-t", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return parse(done.stdout + done.stderr)


if __name__ == "__main__":
    print(binary())
