"""The cache of models: complete or absent, fetched once however many want it; and its progress."""

import multiprocessing
import threading

import pytest
from tests.support.patience import PATIENCE

from headrace.core.errors import ConfigError, DownloadError
from headrace.modeling.weights.sources import list_models, remove_model, verify_model
from headrace.modeling.weights.sources.progress import report
from headrace.modeling.weights.sources.store import ModelStore


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
    paths = {results.get(timeout=PATIENCE) for _ in children}
    for child in children:
        child.join(PATIENCE)
    assert paths == {str(store.directory / "x" / "m.gguf")}
    assert calls.value == 1


def test_a_second_fetch_waits_and_then_finds(store, capsys):
    entered, release = threading.Event(), threading.Event()

    def slow(files, work):
        entered.set()
        assert release.wait(PATIENCE)
        return writing()(files, work)

    found = []
    first = threading.Thread(target=lambda: found.append(store.obtain("x", "src", slow)))
    first.start()
    assert entered.wait(PATIENCE)
    second = threading.Thread(target=lambda: found.append(store.obtain("x", "src", failing)))
    second.start()
    release.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert found == [store.directory / "x" / "m.gguf"] * 2


def test_a_place_that_cannot_be_written_says_how_to_name_another(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"could not be stored.*HEADRACE_CACHE names another"):
        ModelStore(tmp_path / "file").obtain("x", "src", failing)


def test_a_fetch_that_brings_nothing_has_no_size(capsys):
    with pytest.raises(DownloadError), report("m.gguf", is_wanted=True):
        raise DownloadError("the line is dead")
    assert capsys.readouterr().err.splitlines()[-1] == "Failed to fetch m.gguf"


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
