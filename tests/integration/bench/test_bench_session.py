import json
from pathlib import Path

import pytest
from tests.support.fake_sse import FakeSSE, serve
from tests.support.patience import PATIENCE

from headrace.cli.main import main


def run(fake: FakeSSE, tmp_path: Path, *flags: str) -> tuple[int, dict[str, object]]:
    out = tmp_path / "report.json"
    status = main(["bench", "--url", fake.url, "--seed", "5", "--json", str(out), *flags])
    return status, json.loads(out.read_text())


def test_closed_loop_asks_as_it_should_and_counts_every_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(FakeSSE()) as fake:
        status, report = run(
            fake, tmp_path, "--concurrency", "1,3", "--num-requests", "6", "--input-words", "9",
            "--output-tokens", "5", "--api-key", "sesame", "--slo", "ttft=1h",
        )  # fmt: skip
    assert status == 0
    assert len(fake.bodies) == 12
    assert len({body["prompt"] for body in fake.bodies}) == 12
    body = fake.bodies[0]
    assert len(body.pop("prompt").split()) == 9
    assert body == {
        "model": "fake",
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "max_tokens": 5,
    }
    assert fake.headers[0]["authorization"] == "Bearer sesame"
    one, three = report["runs"]
    assert (one["label"], three["label"]) == ("1 client", "3 clients")
    assert (three["num_ok"], three["output_tokens"], three["prompt_tokens"]) == (6, 30, 42)
    assert three["good_share"] == 1.0
    assert report["server"] == {"version": "fake-1"}
    assert report["seed"] == 5
    assert "sesame" not in json.dumps(report)
    shown = capsys.readouterr().out
    assert "3 clients · 6 of 6 requests" in shown
    assert "goodput" in shown


def test_chat_and_open_loop(tmp_path: Path) -> None:
    with serve(FakeSSE()) as fake:
        status, report = run(
            fake, tmp_path, "--chat", "--no-ignore-eos", "--model", "m", "--rate", "500",
            "--num-requests", "10", "--input-words", "3", "--output-tokens", "2",
        )  # fmt: skip
    assert status == 0
    assert report["runs"][0]["num_ok"] == 10
    body = fake.bodies[0]
    assert len(body["messages"][0]["content"].split()) == 3
    assert (body["model"], "ignore_eos" in body, "prompt" in body) == ("m", False, False)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    row = '{"timestamp": %d, "input_length": 8, "output_length": %d, "hash_ids": [%d]}\n'
    trace.write_text(row % (0, 3, 1) + row % (100, 4, 1) + row % (200, 5, 2))
    with serve(FakeSSE()) as fake:
        _, report = run(fake, tmp_path, "--trace", str(trace), "--trace-speed", "100")
    by_length = {body["max_tokens"]: body["prompt"] for body in fake.bodies}
    assert sorted(by_length) == [3, 4, 5]
    assert by_length[3] == by_length[4] != by_length[5]
    assert report["runs"][0]["output_tokens"] == 12


@pytest.mark.parametrize(
    ("fake", "kind"),
    [
        (FakeSSE(status=503), "http 503"),
        (FakeSSE(ending="cut"), "disconnected"),
        (FakeSSE(ending="error"), "stream error"),
        (FakeSSE(ending="nothing"), "empty stream"),
        (FakeSSE(first=PATIENCE), "timeout"),
    ],
)
def test_every_failure_is_counted_by_kind(tmp_path: Path, fake: FakeSSE, kind: str) -> None:
    with serve(fake):
        status, report = run(
            fake, tmp_path, "--concurrency", "2", "--num-requests", "4", "--output-tokens", "3",
            "--timeout", "300ms" if kind == "timeout" else f"{PATIENCE:g}s",
        )  # fmt: skip
    assert status == 1
    assert report["runs"][0]["errors"] == {kind: 4}


def test_a_flood_is_bounded_by_max_in_flight(tmp_path: Path) -> None:
    with serve(FakeSSE(first=2.0)) as fake:
        _, report = run(
            fake, tmp_path, "--rate", "100000", "--num-requests", "20", "--max-in-flight", "5",
            "--output-tokens", "1",
        )  # fmt: skip
    assert report["runs"][0]["errors"] == {"not sent": 15}
    assert report["runs"][0]["num_ok"] == 5


def test_json_to_standard_output_is_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(FakeSSE()) as fake:
        main(["bench", "--url", fake.url, "--concurrency", "1", "--num-requests", "1",
              "--output-tokens", "1", "--json", "-"])  # fmt: skip
    captured = capsys.readouterr()
    assert json.loads(captured.out)["model"] == "fake"
    assert "1 client" in captured.err


def test_no_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("headrace: error: No server answers at http://127")
