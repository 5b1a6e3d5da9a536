"""What a suite found: its cases, and why those failed that did."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

REASONS = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True)
class Case:
    """One check of a suite."""

    name: str
    outcome: str
    """passed, failed or skipped."""
    detail: str = ""
    """The last line of a failure."""


@dataclass(frozen=True)
class Report:
    """One suite, run once."""

    suite: str
    source: str
    """Where it comes from, with its version."""
    cases: list[Case]

    def count(self, outcome: str) -> int:
        """Cases with this outcome."""
        return sum(case.outcome == outcome for case in self.cases)

    def failures(self) -> list[tuple[Case, str | None]]:
        """Each failed case with its explanation; None where there is none."""
        table = tomllib.loads(REASONS.read_text()).get(self.suite, [])
        return [(case, _reason(case, table)) for case in self.cases if case.outcome == "failed"]


def _reason(case: Case, table: list[dict[str, str]]) -> str | None:
    return next((entry["why"] for entry in table if re.search(entry["case"], case.name)), None)
