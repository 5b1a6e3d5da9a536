"""What a person is told when a gateway or a server refuses what a command asks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from headrace.cli.main import main


@contextmanager
def refusing(status: int, message: str) -> Iterator[str]:
    """The address of a server that refuses everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"error": {"message": message}}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is said."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HEADRACE_ADMIN_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("action", "need"),
    [
        (["keys"], "has no admin API: set gateway.admin_keys in"),
        (["usage"], "keeps no ledger: set gateway.admin_keys and accounts.directory in"),
        (["usage", "--export", "csv"], "keeps no ledger: set gateway.admin_keys and accounts"),
        (["pools"], "has no admin API, or no pools in"),
        (["scale", "chat", "3"], "has no admin API, or no pools in"),
        (["decisions"], "has no admin API, or no pools in"),
        (["canaries"], "has no admin API: set gateway.admin_keys in"),
    ],
)
def test_what_a_gateway_lacks_is_named(
    action: list[str], need: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing(404, "There is no '/admin/pools' here.") as url:
        assert main(["fleet", *action, "--gateway", url]) == 2
    assert need in capsys.readouterr().err


def test_a_missing_operators_key_says_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with refusing(401, "This server needs an API key.") as url:
        assert main(["fleet", "--gateway", url]) == 2
        assert "set HEADRACE_ADMIN_KEY, or say --admin-key" in capsys.readouterr().err
        assert main(["fleet", "--gateway", url, "--admin-key", "wrong"]) == 1
        assert "has no such operator's key" in capsys.readouterr().err


def test_an_action_that_there_is_not_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "nope"]) == 2
    said = capsys.readouterr().err
    assert "'nope' is no action" in said
    assert all(word in said for word in ("drain", "keys", "usage", "pools", "decisions", "scale"))


def test_a_load_without_a_key_is_told_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    with refusing(401, "This server needs an API key.") as url:
        assert main(["bench", "--url", url]) == 2
        assert "refused: This server needs an API key. OPENAI_API_KEY" in capsys.readouterr().err
        assert main(["bench", "--url", url, "--api-key", "wrong"]) == 2
        assert "--api-key give" not in capsys.readouterr().err


def test_a_timeline_is_of_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with refusing(404, "There is no '/timeline' here.") as url:
        assert main(["timeline", url]) == 1
        assert "has no timeline" in capsys.readouterr().err
    with refusing(401, "This server needs an API key.") as url:
        assert main(["timeline", url]) == 1
        assert "answered 401: This server needs an API key. Give one with --api-key" in (
            capsys.readouterr().err
        )
