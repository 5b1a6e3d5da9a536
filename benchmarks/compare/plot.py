"""Throughput and time to first token against clients, and prefill bars, from a result file.

python benchmarks/compare/plot.py benchmarks/results/FILE.json docs/images/compare.svg
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from report import label

COLOURS = {
    "headrace": "#0b6e99",
    "headrace-f16": "#2c91bd",
    "headrace-int8": "#4fb3d9",
    "llama.cpp": "#c9702c",
    "openvino": "#7a6aa8",
    "vllm": "#5b8c5a",
}


def draw(result: dict[str, Any], target: Path) -> None:
    """Two panels of lines and, where it was measured, one of bars; headrace is drawn strongest."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "headrace", "font.family": "sans-serif"})
    rows = {name: row for name, row in result["medians"].items() if "error" not in row}
    has_prefill = any(row.get("prefill_tokens_per_second") for row in rows.values())
    figure, panels = plt.subplots(
        1, 2 + has_prefill, figsize=(8.4 + 2.8 * has_prefill, 3.2), layout="constrained"
    )
    _lines(panels[0], rows, "output_tokens_per_second", "output tokens per second")
    _lines(panels[1], rows, "ttft_p95", "time to first token, p95, seconds")
    panels[1].set_yscale("log")
    if has_prefill:
        _bars(panels[2], rows)
    panels[0].set_ylim(0, 1.3 * panels[0].get_ylim()[1])  # room for the legend
    handles, labels = panels[0].get_legend_handles_labels()
    panels[0].legend(handles[::-1], labels[::-1], frameon=False)
    work = result["work"]
    figure.suptitle(
        f"{work['model']}, {result.get('precision', '4bit')}, {work['input_words']} words in, "
        f"{work['output_tokens']} tokens out, {work['threads']} threads, "
        f"{result['machine']['cpu']}, {result['date'][:10]}",
        fontsize=9,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _lines(axes: Any, rows: dict[str, Any], key: str, title: str) -> None:
    clients: list[int] = []
    for name, row in reversed(list(rows.items())):
        clients = [int(c) for c in row[key]]
        width = 2.4 if name.startswith("headrace") else 1.4
        colour = COLOURS.get(name, "#777777")
        values = list(row[key].values())
        axes.plot(clients, values, color=colour, marker="o", linewidth=width, label=label(name))
    axes.set_title(title)
    axes.set_xscale("log", base=2)
    axes.set_xticks(clients, [str(c) for c in clients])
    axes.set_xlabel("clients")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Any, rows: dict[str, Any]) -> None:
    key = "prefill_tokens_per_second"
    lengths = list(next(row[key] for row in rows.values() if row.get(key)))
    width = 0.8 / len(rows)
    for place, (name, row) in enumerate(rows.items()):
        spots = [index + (place - (len(rows) - 1) / 2) * width for index in range(len(lengths))]
        values = [row.get(key, {}).get(length, 0.0) for length in lengths]
        bars = axes.bar(spots, values, 0.92 * width, color=COLOURS.get(name, "#777777"))
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7)
    axes.set_title("prefill tokens per second")
    axes.set_xticks(range(len(lengths)), [f"{int(length):,}" for length in lengths])
    axes.set_xlabel("tokens of the prompt")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    draw(json.loads(args.result.read_text()), args.target)


if __name__ == "__main__":
    main()
