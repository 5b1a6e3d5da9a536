"""`headrace gateway --check`, and starts that are refused: one sentence that says what cannot be used."""

import subprocess
import sys

import pytest
from tests.support.patience import PATIENCE

from headrace.cli.main import main

REPLICA = 'replicas: [{url: "http://127.0.0.1:9"}]\n'
LLM = "messages: [{role: user, content: '%s'}]"


def checked(tmp_path, capsys, text, *options):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    code = main(["gateway", str(file), *options])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_a_good_file_is_good_and_nothing_is_made(tmp_path, capsys):
    text = REPLICA + f"accounts: {{directory: '{tmp_path}/a/b'}}\n"
    text += f"cache: {{enabled: true, path: '{tmp_path}/c/cache.db'}}\n"
    code, said = checked(tmp_path, capsys, text, "--check")
    assert (code, said.strip()) == (0, f"{tmp_path}/fleet.yaml is good: 1 replica.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.yaml"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: {directory: '{at}/file/x'}", "accounts.directory"),
        ("cache: {enabled: true, path: '{at}/file/x.db'}", "cache.path"),
        ("cache: {enabled: true, path: '{at}'}", "cache.path"),
        ("discovery: {file: '{at}/none.yaml'}", "none.yaml"),
        ("pipelines: {vectors: [{name: v, path: '{at}/text.db', embeddings: m}]}", "text.db"),
        ("pipelines: {items: [{name: p, steps: [{name: s, llm: {model: m, messages: [{role: user, content: '{{'}]}}]}]}", "s"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said(tmp_path, capsys, text, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "text.db").write_text("someone else's text, and much of it " * 100)
    code, said = checked(tmp_path, capsys, REPLICA + text.replace("{at}", str(tmp_path)), "--check")
    assert code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_store_without_texts_is_a_warning_and_nothing_is_made(tmp_path, capsys, is_empty):
    path = tmp_path / "notes.db"
    if is_empty:
        path.write_bytes(b"")
    vectors = f"pipelines: {{vectors: [{{name: v, path: '{path}', embeddings: m}}]}}"
    code, said = checked(tmp_path, capsys, REPLICA + vectors, "--check")
    assert code == 0
    (line,) = (line for line in said.splitlines() if "warning" in line)
    assert f"{path}" in line
    assert "headrace vectors" in line
    assert path.exists() is is_empty


@pytest.mark.parametrize("place", ["file/x.db", "", "text.db"])
def test_a_cache_that_cannot_be_used_refuses_the_start(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "text.db").write_text("someone else's")
    text = f"gateway: {{port: 0}}\ncache: {{enabled: true, path: '{tmp_path / place}'}}\n"
    file = tmp_path / "fleet.yaml"
    file.write_text(REPLICA + text)
    command = [sys.executable, "-m", "headrace", "gateway", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert "cache" in line
    assert "cannot be used" in line
    assert (tmp_path / "text.db").read_text() == "someone else's"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, capsys, text):
    code, said = checked(tmp_path, capsys, text, "--check")
    assert code == 2
    assert "is empty" in said
    assert len(said.strip().splitlines()) == 1
