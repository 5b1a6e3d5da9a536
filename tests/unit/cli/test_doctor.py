import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "file").write_bytes(b"x" * 2048)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))


def report(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, object]]:
    status = main(["doctor", "--json", "--backend", "reference", *flags])
    return status, json.loads(capsys.readouterr().out)


def test_findings_and_where_each_setting_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "9")
    monkeypatch.setenv("HEADRACE_TRUSTED_PEER_TOKEN", "hunter2")
    status, found = report(capsys, "--max-num-seqs", "3")
    assert status == 0
    assert found["problems"] == []
    settings = {row[0]: row[1:] for row in found["findings"]["configuration"]}
    assert settings["engine.scheduler.max_num_seqs"] == ["3", "flag --max-num-seqs"]
    assert settings["server.port"] == ["9", "environment HEADRACE_PORT"]
    assert settings["server.host"] == ["127.0.0.1", "default"]
    assert settings["server.trusted_peer_token"][0] == "***"
    assert "hunter2" not in json.dumps(found)
    assert ["models", "2 KiB", ""] in found["findings"]["cache"]
    assert found["findings"]["kernels"] == [
        ["every op", "numpy", "the reference back end was asked for"]
    ]
    assert int({row[0]: row[1] for row in found["findings"]["machine"]}["CPUs"]) >= 1


def test_a_problem_is_reported_and_the_rest_is_still_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> object:
        raise ConfigError("The CPU kernels are not built.")

    monkeypatch.setattr("headrace.kernels.dispatch.explain", fail)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "Problem: The CPU kernels are not built." in shown
    assert "server.port" in shown
