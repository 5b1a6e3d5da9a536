"""The classifier: what it sees, in many languages, and that nothing makes it slow or fail."""

from typing import Any

import pytest

from headrace.config.fleet.models import ClassifierConfig
from headrace.fleet.gateway.models.classify import Features, classify, read_features

EASY = [
    "Hello!",
    "What is the capital of France?",
    "Thanks, that is all",
    "Hallo, wie geht es dir?",
    "Wo ist der Bahnhof?",
    "Bonjour, merci beaucoup",
    "¿Dónde está la estación?",
    "Ciao, grazie mille",
    "Привет!",
    "你好，谢谢",
    "法国的首都是什么？",
    "こんにちは",
    "안녕하세요",
    "مرحبا",
    "नमस्ते",
]
HARD = [
    "Prove that there are infinitely many primes, and compare two proofs of the theorem.",
    "Analyze the tradeoffs of these two designs, and justify your choice step by step.",
    "Beweise, dass die Gleichung keine Lösung hat, und vergleiche zwei Ansätze Schritt für Schritt.",
    "Démontre étape par étape que cette intégrale converge, et justifie chaque théorème.",
    "Demuestra el teorema paso a paso y compara las dos ecuaciones con la derivada.",
    "Dimostra il teorema e confronta le due equazioni passo a passo.",
    "Докажите теорему шаг за шагом и сравните два решения.",
    "请逐步证明这个定理，并分析和比较两种方法。",
    "この定理を証明し、二つの方法を比較して考察してください。積分も計算してください。",
    "이 정리를 단계별로 증명하고 두 방법을 비교 분석하세요.",
    "```python\ndef f(x):\n    return x;\n```\nDebug this function and refactor the algorithm, why does it deadlock?",
]


def score(text: str) -> float:
    return classify(ClassifierConfig(), {"messages": [{"role": "user", "content": text}]}).score


@pytest.mark.parametrize("text", EASY)
def test_small_talk_is_easy(text: str) -> None:
    assert score(text) < 0.15


@pytest.mark.parametrize("text", HARD)
def test_proofs_and_programs_are_hard(text: str) -> None:
    assert score(text) > 0.3


def test_every_weight_is_a_feature() -> None:
    assert ClassifierConfig.__struct_fields__ == Features.__struct_fields__


def test_it_says_what_it_found() -> None:
    found = classify(ClassifierConfig(), {"prompt": HARD[0]})
    assert str(found).startswith(f"complexity {found.score:.2f} (")
    assert "reasoning 0.80" in str(found)
    assert str(classify(ClassifierConfig(), {})) == "complexity 0.00 (nothing found)"


def test_weights_decide() -> None:
    assert (
        classify(ClassifierConfig(reasoning=0.0, mathematics=0.0), {"prompt": HARD[0]}).score < 0.1
    )


def test_only_the_last_question_counts_closely() -> None:
    messages = [
        {"role": "system", "content": HARD[0]},
        {"role": "user", "content": HARD[1]},
        {"role": "assistant", "content": HARD[0]},
        {"role": "user", "content": "Thanks!"},
    ]
    assert read_features({"messages": messages}).reasoning == 0.0


def test_parts_of_a_message_are_read() -> None:
    parts = [{"type": "image_url"}, {"type": "text", "text": HARD[0]}]
    assert read_features({"messages": [{"role": "user", "content": parts}]}).reasoning > 0.5


def test_what_is_wanted_stands_at_either_end() -> None:
    filler = "word " * 20_000
    assert read_features({"prompt": f"{HARD[0]} {filler}"}).reasoning > 0.5
    assert read_features({"prompt": f"{filler} {HARD[0]}"}).reasoning > 0.5


def test_length_and_structure() -> None:
    found = read_features({"prompt": "word " * 1_600, "tools": [{}]})
    assert found.length == 1.0
    assert 0 < found.context < 0.1
    assert found.structure == 1.0
    assert read_features({"response_format": {"type": "text"}}).structure == 0.0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "text"},
        {"messages": [None, 5, [], {"role": 7, "content": {"a": 1}}]},
        {"messages": [{"role": "user", "content": [None, 5, {"text": 7}]}]},
        {"prompt": [1, 2, 3]},
        {"prompt": {"x": 1}},
        {"input": ["a", None]},
        {"prompt": "\ud800\x00" * 5_000},
        {"response_format": "json"},
    ],
)
def test_garbage_is_rated_too(body: dict[str, Any]) -> None:
    assert 0.0 <= classify(ClassifierConfig(), body).score <= 1.0


@pytest.mark.parametrize("char", ["a", "$", "=", "\n", "- ", "{\n", "? ", "的", "a = b; "])
def test_of_a_megabyte_only_the_ends_are_looked_at(char: str) -> None:
    page = read_features({"prompt": char * 20_000})
    megabyte = read_features({"prompt": char * 1_000_000})
    assert (page.code, page.mathematics, page.steps) == (
        megabyte.code,
        megabyte.mathematics,
        megabyte.steps,
    )
