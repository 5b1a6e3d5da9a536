"""Texts found by meaning in one file, and filling it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.cli import vectors
from headrace.core.errors import BadGatewayError, ConfigError, UnavailableError
from headrace.fleet.gateway.pipelines.vectors import VectorFile


def test_the_nearest_come_first_and_stay_in_the_file(tmp_path):
    path = tmp_path / "x.db"
    store = VectorFile(path, is_new=True)
    assert store.add([("east", [1.0, 0.0]), ("north", [0.0, 1.0])]) == 2
    assert store.add([("north east", [0.5, 0.5])]) == 1
    store.close()
    again = VectorFile(path)
    hits = again.nearest([2.0, 0.1], 2)
    assert [hit.text for hit in hits] == ["east", "north east"]
    assert hits[0].score == pytest.approx(0.99875, abs=1e-4)
    with pytest.raises(BadGatewayError):
        again.nearest([1.0, 2.0, 3.0], 1)
    again.close()


def test_vectors_of_another_length_are_refused_and_none_is_kept(tmp_path):
    store = VectorFile(tmp_path / "x.db", is_new=True)
    store.add([("a", [1.0, 0.0])])
    with pytest.raises(ConfigError):
        store.add([("b", [1.0, 0.0]), ("c", [1.0, 0.0, 0.0])])
    assert [hit.text for hit in store.nearest([1.0, 0.0], 9)] == ["a"]
    store.close()


def test_numbers_that_are_too_large_for_a_vector_are_refused(tmp_path):
    """An embedder's JSON may hold more than 32 bits can."""
    store = VectorFile(tmp_path / "t.db", is_new=True)
    store.add([("a", [1.0, 0.0])])
    with pytest.raises(ConfigError):
        store.add([("b", [1e300, 0.0])])
    with pytest.raises(BadGatewayError):
        store.nearest([1e300, 0.0], 1)
    assert [hit.text for hit in store.nearest([1.0, 0.0], 9)] == ["a"]
    store.close()


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_without_texts_is_for_later(tmp_path, content):
    path = tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnavailableError, match=str(path)):
        VectorFile(path)
    assert path.exists() is (content is not None)


def test_a_file_that_is_no_store_is_refused(tmp_path):
    path = tmp_path / "x.db"
    path.write_bytes(b"no database, but much text " * 100)
    with pytest.raises(ConfigError, match=str(path)):
        VectorFile(path)


def test_without_the_extra_it_says_which(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.fleet.gateway.pipelines.vectors.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"headrace\[vectors\]"):
        VectorFile(tmp_path / "x.db", is_new=True)


class Embeds(BaseHTTPRequestHandler):
    """Gives texts their length as a vector; refuses a model called `bad`, and talks nonsense for `odd`."""

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, self.headers.get("authorization"), given))
        status, answer = (
            200,
            {"data": [{"embedding": [1.0, float(len(t))]} for t in given["input"]]},
        )
        if given["model"] == "locked":
            status, answer = 401, {"error": {"message": "This needs a key."}}
        if given["model"] == "apart":
            answer = {"data": [{"embedding": [1.0] * n} for n in range(1, len(given["input"]) + 1)]}
        if given["model"] == "bad":
            status, answer = 404, {"error": {"message": "no such model"}}
        if given["model"] == "odd":
            answer = {"data": 3}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def embedder():
    with ThreadingHTTPServer(("127.0.0.1", 0), Embeds) as made:
        made.asked = []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        made.url = f"http://127.0.0.1:{made.server_port}"
        yield made
        made.shutdown()
        thread.join()


def test_files_are_cut_embedded_and_kept(tmp_path, embedder, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("First\nparagraph.\n\n\n\nSecond.\n")
    two.write_text("\n\n".join(f"{n:050}" for n in range(70)))
    path = tmp_path / "x.db"
    arguments = [str(path), str(one), str(two), "--url", f"{embedder.url}/v1", "--model", "m"]
    assert vectors.main([*arguments, "--chars", "25"]) == 0
    assert "142 texts more" in capsys.readouterr().out
    assert len(embedder.asked) == 5
    at, key, given = embedder.asked[0]
    assert (at, key, given["model"]) == ("/v1/embeddings", "Bearer sk-1", "m")
    assert given["input"][:3] == ["First paragraph.", "Second.", "0" * 25]
    store = VectorFile(path)
    assert store.nearest([1.0, 7.0], 1)[0].text == "Second."
    store.close()
    assert vectors.main(arguments) == 0  # more into the same file
    assert "72 texts more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "kind", "told"),
    [
        ("bad", ConfigError, "no such model"),
        ("odd", UnavailableError, "does not embed"),
        ("locked", ConfigError, "--api-key"),
        ("apart", ConfigError, "takes no such vector"),
    ],
)
@pytest.mark.parametrize("was_there", [False, True])
def test_an_embedder_that_does_not_do_it(tmp_path, embedder, model, kind, told, was_there):
    text, path = tmp_path / "one.txt", tmp_path / "x.db"
    text.write_text("x\n\ny")
    if was_there:
        path.write_bytes(b"")
    with pytest.raises(kind, match=told):
        vectors.main([str(path), str(text), "--url", embedder.url, "--model", model])
    assert path.exists() is was_there  # no empty file stays of it


def test_the_key_of_the_command_line_goes_before_the_variable(tmp_path, embedder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    text = tmp_path / "one.txt"
    text.write_text("x")
    arguments = [str(tmp_path / "x.db"), str(text), "--url", embedder.url, "--model", "m"]
    assert vectors.main([*arguments, "--api-key", "sk-2"]) == 0
    assert [key for _, key, _ in embedder.asked] == ["Bearer sk-2"]


@pytest.mark.parametrize(
    ("url", "kind"), [("http://127.0.0.1:1", UnavailableError), ("http://", ConfigError)]
)
def test_an_embedder_that_is_not_there(tmp_path, url, kind):
    text = tmp_path / "one.txt"
    text.write_text("x")
    with pytest.raises(kind):
        vectors.main([str(tmp_path / "x.db"), str(text), "--url", url, "--model", "m"])


@pytest.mark.parametrize("extra", [["--chars", "0"], ["--chars", "-5"]])
def test_a_length_that_is_none_is_refused(tmp_path, embedder, extra):
    text = tmp_path / "one.txt"
    text.write_text("x")
    with pytest.raises((ConfigError, SystemExit)):
        vectors.main(
            [str(tmp_path / "x.db"), str(text), "--url", embedder.url, "--model", "m", *extra]
        )


def test_a_text_that_is_not_there_is_refused(tmp_path, embedder):
    with pytest.raises(ConfigError, match="cannot be read"):
        vectors.main(
            [
                str(tmp_path / "x.db"),
                str(tmp_path / "no.txt"),
                "--url",
                embedder.url,
                "--model",
                "m",
            ]
        )
