"""What `make suites` writes: counts, and an explanation for each failure."""

import re
import tomllib

from cases import REASONS, Case, Report


def test_every_reason_has_a_pattern_that_compiles_and_a_sentence():
    for entries in tomllib.loads(REASONS.read_text()).values():
        for entry in entries:
            assert set(entry) == {"case", "why"}
            re.compile(entry["case"])
            assert entry["why"]


def test_failures_are_explained_by_the_first_pattern_that_is_found():
    cases = [
        Case("test_basic::test_server_slots", "failed", "404"),
        Case("test_basic::test_server_start", "passed"),
        Case("test_nobody::test_nothing", "failed", "odd"),
        Case("test_lora::test_it", "skipped"),
    ]
    report = Report("llama.cpp", "somewhere", cases)
    assert [report.count(word) for word in ("passed", "failed", "skipped")] == [1, 2, 1]
    (first, why), (second, nothing) = report.failures()
    assert (first, second) == (cases[0], cases[2])
    assert why is not None
    assert "external mode" in why
    assert nothing is None
    assert Report("unheard of", "", cases).failures()[0][1] is None
