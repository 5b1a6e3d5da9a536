"""`headrace analyze` at a real server, and at what is none."""

import json

import pytest

from headrace.cli.main import main


def test_a_real_server_is_watched_probed_and_judged(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--seconds", "1", "--batch", "2", "--prompt-words", "96", "--json"]
    assert main(["analyze", server, *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    seen, analysis = report["observations"], report["analysis"]
    assert seen["kind"] == "headrace server"
    assert all(seen["probe"][name] > 0 for name in ("round_trip", "tpot", "batch_tpot", "tokenise"))
    assert seen["model"]["weight_bytes"] > 50e6
    assert 100e6 < seen["model"]["parameters"] < 200e6
    assert seen["model"]["kv_format"]
    assert seen["hardware"]["memory"] > 1e8
    assert seen["hardware"]["compute"] > 1e8
    assert analysis["bound"] in analysis["seconds"]
    assert any("Decoding" in sentence for sentence in analysis["sentences"])


def test_what_the_machine_can_do_may_be_said(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--seconds", "1", "--batch", "2", "--prompt-words", "64"]
    flags += ["--memory-bandwidth", "1000", "--compute", "100000"]
    assert main(["analyze", server, *flags]) == 0
    text = capsys.readouterr().out
    assert "as given" in text
    assert "bounds latency" in text


def test_where_no_server_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "http://127.0.0.1:1", "--seconds", "1"]) == 2
    assert "No server answers" in capsys.readouterr().err
    assert main(["analyze", "ftp://x"]) == 2
