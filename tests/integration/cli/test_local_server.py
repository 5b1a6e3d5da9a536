import sys
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from headrace.cli import local_server as module
from headrace.core.errors import ConfigError, UnavailableError


def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Make `python -P -m headrace serve …` run `body` instead."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_the_address_is_read_from_the_log_and_the_child_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(
        monkeypatch,
        tmp_path,
        f'echo "$@" > {tmp_path}/arguments; echo $FLAVOUR >&2\n'
        'echo "info server: headrace 1 is ready at http://127.0.0.1:77 after 0.1 s" >&2\n'
        f"trap 'echo bye > {tmp_path}/ended; exit 0' TERM\n"
        "while true; do sleep 0.02; done",
    )
    with module.local_server(
        ["m"], ready_timeout=PATIENCE, environment={"FLAVOUR": "mint"}
    ) as server:
        assert server.url == "http://127.0.0.1:77"
        assert server.log[0] == "mint"
    assert (tmp_path / "ended").read_text() == "bye\n"
    words = (tmp_path / "arguments").read_text().split()
    assert words[:5] == ["-P", "-m", "headrace", "serve", "m"]
    assert words[5:7] == ["--port", "0"]


def test_a_child_that_ends_gives_its_last_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "echo 'headrace: error: No such model.' >&2; exit 2")
    with pytest.raises(ConfigError, match=r"^The server did not start\. No such model\.$"):  # noqa: SIM117
        with module.local_server(["m"], ready_timeout=PATIENCE):
            pass


def test_a_child_that_is_never_ready_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(UnavailableError, match="not ready after"):  # noqa: SIM117
        with module.local_server(["m"], ready_timeout=0.05):
            pass
