"""The wheel holds all that is read at run time. It is built here without its kernels, which takes a second."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/headrace"
BUILD = """
import sys
from scikit_build_core.build import build_wheel
print(build_wheel(sys.argv[1], {"wheel.cmake": "false"}))
"""
#: Reads what is no module, as the commands do.
READ = """
import sys
from importlib.resources import files
from pathlib import Path
import headrace
assert Path(headrace.__file__).is_relative_to(sys.argv[1]), headrace.__file__
from headrace.bench.simulate.profile import built_in, read_profile
from headrace.fleet.dashboard.files import NAMES, read_files
from headrace.observe.export.boards import board_json, boards
assert set(read_files()) == set(NAMES)
assert all(board_json(board) for board in boards())
assert [read_profile(name) for name in built_in()]
assert all((files("headrace.server.rpc") / name).read_bytes() for name in ("headrace.binpb", "headrace.proto"))
assert (files("headrace") / "py.typed").is_file()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core")
    place = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = place.glob("*.whl")
    return found


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    made = {"__pycache__", ".so"}
    files = {
        str(path.relative_to(ROOT / "src"))
        for path in PACKAGE.rglob("*")
        if path.is_file() and not made & {path.parent.name, path.suffix}
    }
    with ZipFile(wheel) as opened:
        missing = files - set(opened.namelist())
    assert not missing, f"the wheel lacks {sorted(missing)}"


def test_an_unpacked_wheel_finds_its_files(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel) as opened:
        opened.extractall(tmp_path)
    # Without `site`, so that no editable install is found: what was unpacked, and the packages that it needs.
    script = f"import sys; sys.path[:0] = sys.argv[1:]\n{READ}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(tmp_path), sysconfig.get_path("purelib")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


def test_the_wheel_installs_the_command_and_its_licence(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        names = opened.namelist()
        (scripts,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "headrace=headrace.cli.main:main" in opened.read(scripts).decode().replace(" ", "")
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    outside = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert outside == {"headrace"}
