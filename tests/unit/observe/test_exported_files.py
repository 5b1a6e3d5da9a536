"""Rule files and boards: sound by promtool, and made of metrics that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from headrace.cli.export import main, rules_text
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.slos import Measure, Objective
from headrace.core.errors import ConfigError
from headrace.observe.catalogue import catalogue
from headrace.observe.export.boards import board_json, boards
from headrace.observe.metric import Kind

DEPLOY = Path(__file__).parents[3] / "deploy"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
_NAME = re.compile(r"\bheadrace_[a-z0-9_]+")
KNOWN = {
    name
    for metric in catalogue()
    for name in (
        [f"{metric.name}_bucket", f"{metric.name}_count", f"{metric.name}_sum"]
        if metric.kind is Kind.HISTOGRAM
        else [metric.name]
    )
}


def test_every_expression_is_about_metrics_of_the_catalogue():
    text = rules_text(FleetConfig(slos=(Objective(name="up", measure=Measure.AVAILABILITY),)))
    used = {
        name
        for line in text.splitlines()
        if "summary" not in line and "description" not in line
        for name in _NAME.findall(line)
    }
    for board in boards():
        for panel in board_json(board)["panels"]:
            for target in panel["targets"]:
                found = set(_NAME.findall(target["expr"]))
                assert found, target
                used |= found
    assert len(used) > 50
    assert used - KNOWN == set()


def test_every_metric_has_a_panel():
    shown = " ".join(
        target["expr"]
        for board in boards()
        for panel in board_json(board)["panels"]
        for target in panel["targets"]
    )
    shown_names = set(_NAME.findall(shown))
    missing = {m.name for m in catalogue() if not {m.name, f"{m.name}_bucket"} & shown_names}
    assert missing == set()


def test_the_command_refuses_what_it_cannot_do(tmp_path, capsys):
    with pytest.raises(ConfigError, match="takes --out DIRECTORY"):
        main(["boards"])
    assert main(["rules"]) == 0
    assert "headrace-health" in capsys.readouterr().out
    assert main(["boards", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "headrace-overview.json").read_text())["uid"]


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules():
    file = DEPLOY / "prometheus" / "headrace.rules.yaml"
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(file)],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_rules_fire_when_budgets_burn_and_not_before(tmp_path):
    slo = Objective(name="quick", measure=Measure.TTFT, threshold=1.0, target=0.99)
    (tmp_path / "rules.yaml").write_text(rules_text(FleetConfig(slos=(slo,))))
    series = 'headrace_slo_events_total{slo="quick",model="m",result='
    labels = {"severity": "critical", "slo": "quick", "model": "m"}
    burn = {"eval_time": "70m", "alertname": "HeadraceSloBurn"}
    good = {"eval_time": "29m", "alertname": "HeadraceSloBurn", "exp_alerts": []}
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                # Half an hour of nothing but good ones, then half of them are bad.
                "input_series": [
                    {"series": f'{series}"good"}}', "values": "0+60x30 1830+30x60"},
                    {"series": f'{series}"bad"}}', "values": "0+0x30 30+30x60"},
                ],
                "promql_expr_test": [
                    {
                        "expr": 'headrace:slo_error_ratio:rate5m{slo="quick"} > bool 0.4',
                        "eval_time": "60m",
                        "exp_samples": [{"labels": '{slo="quick", model="m"}', "value": 1}],
                    }
                ],
                "alert_rule_test": [good],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # And that it does fire: expecting silence at the end must fail, and name the alert.
    test["tests"][0]["alert_rule_test"] = [{**burn, "exp_alerts": []}]
    file.write_text(json.dumps(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    for name, value in labels.items():
        assert f'{name}="{value}"' in done.stdout + done.stderr
