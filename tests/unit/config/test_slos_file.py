"""`slos` and `alerts` of fleet.yaml: what is read, and what is refused by name."""

import pytest

from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.slos import BurnRule, Measure, Severity
from headrace.core.errors import ConfigError


def read(tmp_path, text):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return read_fleet(file)


def test_units_and_defaults(tmp_path):
    config = read(
        tmp_path,
        """
        slos:
          - {name: quick, measure: ttft, threshold: 800ms, target: 0.995, window: 7d, model: "llama*"}
          - {name: up, measure: availability}
        alerts:
          webhooks: [{url: "https://pager.example/hook", secret: s3cret}]
        """,
    )
    quick, up = config.slos
    assert (quick.threshold, quick.window, quick.measure) == (0.8, 604_800.0, Measure.TTFT)
    assert (up.threshold, up.target, up.model) == (None, 0.99, "*")
    assert "s3cret" not in repr(config)


def test_windows_of_the_defaults_are_those_of_the_sre_workbook():
    rules = [
        BurnRule(severity=Severity.CRITICAL, burn=14.4, budget=0.02),
        BurnRule(severity=Severity.CRITICAL, burn=6.0, budget=0.05),
        BurnRule(severity=Severity.WARNING, burn=1.0, budget=0.1),
    ]
    month = 30 * 86_400.0
    assert [rule.long(month) for rule in rules] == pytest.approx([3600, 6 * 3600, 3 * 86_400])
    assert [rule.short(month) for rule in rules] == pytest.approx([300, 1800, 6 * 3600])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slos: [{name: a, measure: ttft}]", "The objective a: ttft needs a threshold"),
        ("slos: [{name: a, measure: availability, threshold: 1}]", "availability has no threshold"),
        ("slos: [{name: A b, measure: availability}]", "The objective's name 'A b'"),
        ("slos: [{name: a, measure: availability, window: 1s}]", "its window must be 1m to 90d"),
        ("slos: [{name: a, measure: availability, target: 1}]", "target"),
        ("slos: [{name: a, measure: speed}]", "'speed' is none of ttft, tpot"),
        (
            "slos: [{name: a, measure: availability}, {name: a, measure: availability}]",
            "Two objectives have the name a",
        ),
        ("alerts: {webhooks: [{url: 'ftp://x'}]}", "url of a webhook of alerts"),
        ("alerts: {rules: [{severity: loud, burn: 1, budget: 0.1}]}", "'loud' is none of"),
        ("alerts: {min_bad: 0}", "min_bad"),
    ],
)
def test_what_is_refused(tmp_path, text, why):
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, text)


def test_an_objective_about_a_class_that_there_is_not_is_refused(tmp_path):
    text = "slos: [{name: gold, measure: availability, priority: high}]"
    with pytest.raises(ConfigError, match="gold has the priority 'high', which is no class of"):
        read(tmp_path, text)
    classes = "flow: {classes: [{name: high, rank: 1}, {name: standard}]}"
    assert read(tmp_path, f"{text}\n{classes}").slos[0].priority == "high"
    assert read(tmp_path, text.replace("high", "'st*'")).slos[0].priority == "st*"
