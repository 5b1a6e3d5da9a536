import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.bench.simulate.tally import Tally, read_slo
from headrace.cli.main import main
from headrace.core.errors import ConfigError


def test_a_request_is_good_if_it_keeps_every_bound() -> None:
    tally = Tally(read_slo("ttft=1s,tpot=100ms"), 100.0)
    for at in (1.0, 2.0, 3.0, 4.0):
        tally.arrived(at, 10)
    tally.answered(1.0, 1.5, 2.0, 5, 11)
    tally.answered(2.0, 3.5, 4.0, 5, 11)  # its first token is late
    tally.answered(3.0, 3.5, 6.0, 5, 11)  # its tokens are slow
    tally.failed("QueueFullError")
    assert (tally.num_arrived, tally.num_good) == (4, 1)
    assert sum(m.num_good for m in tally.moments) == 1
    assert tally.errors == {"QueueFullError": 1}
    ttft, tpot, e2e = tally.distributions()
    assert ttft.max == pytest.approx(1.5)
    assert tpot.max == pytest.approx(0.25)
    assert e2e.max == pytest.approx(3.0)


def test_replica_hours_are_what_was_paid_for_within_the_run() -> None:
    tally = Tally(read_slo("ttft=1s"), 7200.0)
    tally.replicas(0.0, 2, 2)
    tally.replicas(1800.0, 4, 2)
    tally.replicas(3600.0, 0, 0)
    tally.replicas(5400.0, 1, 1)
    tally.replicas(9000.0, 50, 50)
    tally.close()
    assert tally.replica_hours == pytest.approx(1.0 + 2.0 + 0.5)
    assert sum(m.ready_seconds for m in tally.moments) == pytest.approx(3600 * (1.0 + 1.0 + 0.5))


@pytest.mark.parametrize("text", ["itl=50ms", "", "ttft=soon", "late=1s"])
def test_objectives_that_cannot_be_told_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_slo(text)


def test_the_command_prints_a_table_and_writes_json_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "run.svg"
    command = ["simulate", "--duration", "60s", "--rate", "3", "--replicas", "2"]
    assert main([*command, "--json", "-", "--svg", str(svg)]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["num_requests"] == pytest.approx(180, rel=0.3)
    assert report["replica_hours"] == pytest.approx(2 / 60)
    assert "replica-hours" in captured.err
    root = ElementTree.fromstring(svg.read_text())
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{*}path")) == 6


def test_what_cannot_be_read_or_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text('{"model": "x", "step": {"fixed": -1}}')
    for profile in ("nowhere.json", str(tmp_path / "bad.json")):
        assert main(["simulate", "--profile", profile]) == 2
    assert main(["simulate", "--trace", "nowhere.csv"]) == 2
    assert main(["simulate", "--duration", "10", "--svg", "/nowhere/x.svg"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4
    assert all(line.startswith("headrace: error: ") for line in errors)
