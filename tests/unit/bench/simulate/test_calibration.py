import json
from pathlib import Path
from random import Random

import pytest
from tests.support.fake_sse import FakeSSE, serve

from headrace.bench.simulate.fit import Sample, fit
from headrace.bench.simulate.profile import Profile, StepTime, built_in, read_profile, write_profile
from headrace.cli.main import main

TRUE = (0.008, 0.0005, 0.0012, 3e-7, 0.004)


def samples(noise: float) -> list[Sample]:
    rng, made = Random(1), []
    for tokens in (16, 64, 200, 512, 900, 1500):
        made.append((-(-tokens // 512), tokens, 0, tokens * (tokens + 1) / 2, 1))
    for rows in (1, 2, 4, 8, 16):
        made.append((1, 0, rows, rows * 60, 0))
        made.append((1, 0, rows, rows * 900, 0))
    return [
        Sample(
            sum(c * v for c, v in zip(TRUE, counts, strict=True))
            * (1 + noise * rng.uniform(-1, 1)),
            *counts,
        )
        for counts in made
    ]


def test_exact_times_give_the_coefficients_back() -> None:
    found = fit(samples(0.0))
    assert found.coefficients == pytest.approx(TRUE, rel=1e-3)
    assert found.residual < 1e-4


def test_noise_shows_in_the_residual_and_little_in_the_sums() -> None:
    found = fit(samples(0.05))
    assert 0.01 < found.residual < 0.06
    step = StepTime(
        fixed=found.coefficients[0],
        prefill_token=found.coefficients[1],
        decode_row=found.coefficients[2],
        attended_token=found.coefficients[3],
    )
    true = 0.008 + 300 * 0.0005 + 8 * 0.0012 + 5000 * 3e-7
    assert step.seconds(300, 8, 5000) == pytest.approx(true, rel=0.05)


def test_what_would_be_less_than_free_is_free() -> None:
    # A step that gets shorter with more rows: the row's cost is left at nothing.
    made = [Sample(0.01 - 0.0001 * n, 1, 0, n, 0, 0) for n in range(1, 9)]
    made += [Sample(0.02 + 0.001 * n, 1, n, 0, 0, 1) for n in (10, 50, 100)]
    found = fit(made)
    assert found.coefficients[2] == 0.0
    assert min(found.coefficients) >= 0.0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="do not tell"):
        fit(samples(0.0)[:4])


def test_profiles_are_written_and_read_again(tmp_path: Path) -> None:
    profile = Profile(
        model="m", step=StepTime(fixed=0.01, prefill_token=0.001, decode_row=0.0), max_num_seqs=3
    )
    write_profile(profile, str(tmp_path / "p.json"))
    assert read_profile(str(tmp_path / "p.json")) == profile
    assert "smollm2-135m" in built_in()
    for name in built_in():
        assert read_profile(name).residual is not None


def test_a_server_is_measured_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "measured.json"
    with serve(FakeSSE(first=0.01, gap=0.001)) as fake:
        assert (
            main(["simulate", "--calibrate", fake.url, "--out", str(out), "--boot-time", "3"]) == 0
        )
    written = json.loads(out.read_text())
    assert written["boot_seconds"] == 3.0
    assert written["residual"] >= 0
    assert read_profile(str(out)).step.fixed + read_profile(str(out)).step.decode_row > 0
    shown = capsys.readouterr().out
    assert "a prompt of" in shown
    assert "residual" in shown
    prompts = {len(body["prompt"].split()) for body in fake.bodies}
    assert {16, 1500} <= prompts
    assert all(body["ignore_eos"] for body in fake.bodies)


def test_a_server_that_fails_or_is_not_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serve(FakeSSE(status=500)) as fake:
        assert main(["simulate", "--calibrate", fake.url]) == 1
    assert main(["simulate", "--calibrate", "http://127.0.0.1:9"]) == 2
    assert all(
        line.startswith("headrace: error: ") for line in capsys.readouterr().err.splitlines()
    )
