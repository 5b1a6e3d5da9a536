"""Medians, ratios and tables of a comparison; the README section made of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from readme import BEGIN, END, newest, replaced, section
from report import markdown, medians, ratios
from work import Figures, Work, last_words


def figures(speed: float, *, ready: float = 1.0) -> Figures:
    return Figures(
        ready_seconds=ready,
        output_tokens_per_second={1: speed, 16: 3 * speed},
        ttft_p50={1: 10 / speed, 16: 20 / speed},
        ttft_p95={1: 20 / speed, 16: 40 / speed},
        prefill_tokens_per_second={512: 10 * speed},
    )


def result(**rows: Any) -> dict[str, Any]:
    rounds = [{name.replace("_", "."): figures(speed) for name, speed in rows.items()}]
    work = {"model": "m", "rounds": 1, "input_words": 8, "output_tokens": 4, "threads": 2}
    found = medians(rounds, {})
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "a CPU"},
        "precision": "4bit",
        "work": work,
        "versions": {name: f"{name} 1" for name in found},
        "files": dict.fromkeys(found, "m.gguf"),
        "medians": found,
    }


def test_medians_are_taken_figure_by_figure() -> None:
    rounds = [{"headrace": figures(speed, ready=speed)} for speed in (100.0, 300.0, 110.0)]
    found = medians(rounds, {})["headrace"]
    assert found["ready_seconds"] == 110.0
    assert found["output_tokens_per_second"] == {"1": 110.0, "16": 330.0}
    assert found["prefill_tokens_per_second"] == {"512": 1100.0}


def test_a_peer_that_failed_once_is_its_error() -> None:
    rounds = [{"headrace": figures(1.0), "openvino": figures(2.0)}, {"headrace": figures(1.0)}]
    assert medians(rounds, {"openvino": "no"})["openvino"] == {"error": "no"}


def test_ratios_are_against_the_best_other_and_above_one_if_we_are_better() -> None:
    found = medians(
        [
            {
                "headrace": figures(200.0, ready=0.5),
                "llama.cpp": figures(50.0, ready=1.0),
                "openvino": figures(100.0, ready=4.0),
            }
        ],
        {"vllm": "no"},
    )
    best = ratios(found)
    assert best["output_tokens_per_second"] == {"1": 2.0, "16": 2.0}
    assert best["ttft_p95"] == {"1": 2.0, "16": 2.0}
    assert best["prefill_tokens_per_second"] == {"512": 2.0}
    assert best["ready"] == {"": 2.0}


def test_no_ratios_without_two_sides() -> None:
    assert ratios(medians([{"headrace": figures(1.0)}], {"openvino": "no"})) == {}
    assert ratios(medians([{"openvino": figures(1.0)}], {})) == {}


def test_tables_have_a_row_a_peer_and_say_why_one_does_not_run() -> None:
    shown = result(headrace=200.0, llama_cpp=100.0)
    shown["medians"]["openvino"] = {"error": "what | happened\nthere"}
    lines = markdown(shown).splitlines()
    assert lines[0] == "| output tok/s | exec → ready | 1 client | 16 clients |"
    assert lines[2] == "| headrace | 1.00 s | 200 | 600 |"
    assert lines[4].startswith("| OpenVINO GenAI (no HTTP) | does not run this: what / happened")
    assert {line.count("|") for line in lines[:6]} == {5}
    assert markdown(shown).count("does not run this") == 1
    assert lines[5] == "| headrace / best other | 1.0× | **2.00×** | **2.00×** |"
    assert "| headrace | 50 / 100 | 100 / 200 |" in lines
    assert "| prefill tok/s | prompts of 512 tokens |" in lines
    assert "| headrace | 2,000 |" in lines


def test_a_figure_that_was_not_measured_is_a_dash() -> None:
    shown = result(headrace=200.0, llama_cpp=100.0)
    del shown["medians"]["llama.cpp"]["prefill_tokens_per_second"]
    assert "| llama.cpp server | – |" in markdown(shown)
    del shown["medians"]["headrace"]["prefill_tokens_per_second"]
    assert "prefill" not in markdown(shown)


def test_the_section_shows_the_newest_result_of_each_kind(tmp_path: Path) -> None:
    for name, precision, speed in (
        ("2026-01-01-0000-m-4bit", "4bit", 100.0),
        ("2026-01-02-0000-m-4bit", "4bit", 300.0),
        ("2026-01-01-0000-m-8bit", "8bit", 150.0),
    ):
        shown = result(headrace=speed, llama_cpp=100.0) | {"precision": precision}
        (tmp_path / f"{name}.json").write_text(json.dumps(shown))
    assert {key: path.stem for key, path in newest(sorted(tmp_path.glob("*.json"))).items()} == {
        ("m", "4bit"): "2026-01-02-0000-m-4bit",
        ("m", "8bit"): "2026-01-01-0000-m-8bit",
    }
    text = section(tmp_path)
    assert "m, 8 bit | 2026-01-02 | 1: 1.50×, 16: 1.50× | 512: 1.50× |" in text
    assert "3.00×" in text
    assert "Quality" not in text


def test_only_the_section_is_replaced() -> None:
    before = f"above\n{BEGIN}\nold\n{END}\nbelow"
    assert replaced(before, "new") == f"above\n{BEGIN}\n\nnew\n{END}\nbelow"
    with pytest.raises(ValueError, match="lacks the marks"):
        replaced("no marks", "new")


def test_the_readme_shows_what_the_result_files_say() -> None:
    """Run `python benchmarks/compare/readme.py` if this fails."""
    root = Path(__file__).parents[3]
    readme = (root / "README.md").read_text()
    assert replaced(readme, section(root / "benchmarks" / "results")) == readme


def work(**changes: Any) -> Work:
    settings: dict[str, Any] = {
        "concurrency": (1, 4),
        "input_words": 5,
        "output_tokens": 7,
        "requests_per_client": 2,
        "prefill_tokens": (16,),
        "prefill_requests": 3,
        "starts": 1,
        "threads": 2,
        "seed": 11,
    }
    return Work(**settings | changes)


def test_all_peers_of_a_round_have_the_same_prompts_and_the_next_round_others() -> None:
    assert work().prompts(4) == work().prompts(4)
    assert len(work().prompts(4)) == 8
    assert len(set(work().prompts(4)) | set(work().prompts(1))) == 12
    assert {len(prompt.split()) for prompt in work().prompts(4)} == {5}
    assert not set(work().prompts(4)) & set(work(seed=12).prompts(4))


def test_prefill_prompts_have_exactly_the_tokens_asked_for_and_one_to_warm_up() -> None:
    prompts = work().prefill_prompts(16)
    assert [len(prompt) for prompt in prompts] == [16] * 4
    assert len({tuple(prompt) for prompt in prompts}) == 4


def test_there_is_room_for_the_longest_sequence() -> None:
    assert work(prefill_tokens=(2048,)).longest() > 2048
    assert work(input_words=400, prefill_tokens=()).longest() >= 2 * 400 + 7


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("fine\nRuntimeError: no such architecture\n  at line 3\n", "RuntimeError: no such arch"),
        ("one\ntwo\n\n", "two"),
        (
            "Error: check failed at /home/who/src/gguf.cpp:84:\nno such file\nend",
            "Error: check failed at gguf.cpp:84: no such file",
        ),
        ("", "no output"),
    ],
)
def test_last_words(output: str, said: str) -> None:
    assert last_words(output).startswith(said)
