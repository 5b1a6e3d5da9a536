"""Medians over rounds, and tables of them.

A result file holds `medians`: per peer either `error`, or `ready_seconds` and, by clients or prompt tokens,
`output_tokens_per_second`, `ttft_p50`, `ttft_p95` and `prefill_tokens_per_second`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from work import Figures

OURS = ("headrace", "headrace-f16", "headrace-int8")
LABELS = {
    "headrace-f16": "headrace, f16 KV",
    "headrace-int8": "headrace, int8 KV",
    "llama.cpp": "llama.cpp server",
    "openvino": "OpenVINO GenAI (no HTTP)",
    "vllm": "vLLM CPU (bf16)",
}
FIGURES = ("output_tokens_per_second", "ttft_p50", "ttft_p95", "prefill_tokens_per_second")

Row = Mapping[str, Any]


def medians(
    rounds: Sequence[Mapping[str, Figures]], errors: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Per peer: the median over the rounds of every figure, or its error. Keys are text, as in JSON."""
    names = list(dict.fromkeys([name for some in rounds for name in some] + list(errors)))
    result: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in errors:
            result[name] = {"error": errors[name]}
            continue
        figures = [some[name] for some in rounds]
        result[name] = {"ready_seconds": median(f.ready_seconds for f in figures)}
        for key in FIGURES:
            every = [getattr(f, key) for f in figures]
            result[name][key] = {str(c): median(some[c] for some in every) for c in every[0]}
    return result


def ratios(found: Mapping[str, Row], ours: str = OURS[0]) -> dict[str, dict[str, float]]:
    """One row of ours against the best other peer, figure by figure: above 1 we are better."""
    working = {name: row for name, row in found.items() if "error" not in row}
    others = [row for name, row in working.items() if name not in OURS]
    if ours not in working or not others:
        return {}
    mine = working[ours]
    result = {"ready": {"": min(row["ready_seconds"] for row in others) / mine["ready_seconds"]}}
    for key in FIGURES:
        is_time = key.startswith("ttft")
        for column, value in mine.get(key, {}).items():
            theirs = [row[key][column] for row in others if column in row.get(key, {})]
            if theirs and value:
                ratio = min(theirs) / value if is_time else value / max(theirs)
                result.setdefault(key, {})[column] = ratio
    return result


def label(name: str) -> str:
    """How tables and plots call a peer."""
    return LABELS.get(name, name)


@dataclass(frozen=True)
class _Table:
    """One table: a row a peer, a column a number of clients or of prompt tokens."""

    title: str
    key: str
    """The figure that its columns and its ratios are of."""
    heading: Callable[[str], str]
    cell: Callable[[Row, str], str]
    ratio_title: str
    with_ready: bool = False

    def markdown(self, found: Mapping[str, Row]) -> str:
        """ "" if no peer has the figure."""
        columns = list(dict.fromkeys(c for row in found.values() for c in row.get(self.key, {})))
        if not columns:
            return ""
        head = [self.title, *(["exec → ready"] * self.with_ready), *map(self.heading, columns)]
        lines = [_line(head), "|---" + "|--:" * (len(head) - 1) + "|"]
        for name, row in found.items():
            lines.append(_line([label(name), *self._cells(row, columns, len(head) - 1)]))
        for ours in OURS:
            best = ratios(found, ours)
            if not best:
                continue
            values = best.get(self.key, {})
            ready = [f"{best['ready']['']:.1f}×"] * self.with_ready
            cells = [f"**{values[c]:.2f}×**" if c in values else "–" for c in columns]
            title = self.ratio_title.replace("headrace", label(ours))
            lines.append(_line([title, *ready, *cells]))
        return "\n".join(lines) + "\n"

    def _cells(self, row: Row, columns: Sequence[str], count: int) -> list[str]:
        if "error" in row:
            # It is said once, in the first table.
            said = row["error"].replace("|", "/").replace("\n", " ")
            why = f"does not run this: {said}" if self.with_ready else "–"
            return [why, *[""] * (count - 1)]
        ready = [f"{row['ready_seconds']:.2f} s"] * self.with_ready
        present = row.get(self.key, {})
        return ready + [self.cell(row, c) if c in present else "–" for c in columns]


def _clients(column: str) -> str:
    return f"{column} client{'s' * (column != '1')}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_TABLES = (
    _Table(
        "output tok/s",
        "output_tokens_per_second",
        _clients,
        lambda row, c: f"{row['output_tokens_per_second'][c]:,.0f}",
        "headrace / best other",
        with_ready=True,
    ),
    _Table(
        "time to first token, p50 / p95, ms",
        "ttft_p95",
        _clients,
        lambda row, c: f"{1e3 * row['ttft_p50'][c]:,.0f} / {1e3 * row['ttft_p95'][c]:,.0f}",
        "best other / headrace, p95",
    ),
    _Table(
        "prefill tok/s",
        "prefill_tokens_per_second",
        lambda c: f"prompts of {int(c):,} tokens",
        lambda row, c: f"{row['prefill_tokens_per_second'][c]:,.0f}",
        "headrace / best other",
    ),
)


def markdown(result: Mapping[str, Any]) -> str:
    """All tables of one result."""
    tables = (table.markdown(result["medians"]) for table in _TABLES)
    return "\n".join(table for table in tables if table)
