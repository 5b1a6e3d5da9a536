"""Output tokens per second and time to first token against clients, from a result file.

python benchmarks/compare/plot.py benchmarks/results/FILE.json docs/images/compare.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = {"headrace": "#0b6e99", "llama.cpp": "#c9702c", "openvino": "#7a6aa8"}
LABELS = {"openvino": "OpenVINO GenAI (no HTTP)"}


def draw(result: dict, target: Path) -> None:
    """Two panels, one line a peer; headrace is drawn last and strongest."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "headrace", "font.family": "sans-serif"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
    for name, row in reversed(list(result["medians"].items())):
        clients = [int(c) for c in row["output_tokens_per_second"]]
        style = {
            "color": COLOURS.get(name, "#777777"),
            "marker": "o",
            "linewidth": 2.4 if name == "headrace" else 1.4,
            "label": LABELS.get(name, name),
        }
        left.plot(clients, list(row["output_tokens_per_second"].values()), **style)
        right.plot(clients, list(row["ttft_p95"].values()), **style)
    left.set_title("output tokens per second")
    right.set_title("time to first token, p95, seconds")
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(clients, [str(c) for c in clients])
        axes.set_xlabel("clients")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylim(0, 1.3 * left.get_ylim()[1])  # room for the legend
    handles, labels = left.get_legend_handles_labels()
    left.legend(handles[::-1], labels[::-1], frameon=False)
    work = result["work"]
    figure.suptitle(
        f"{work['model']}, {work['input_words']} words in, {work['output_tokens']} tokens out, "
        f"{work['threads']} threads, {result['machine']['cpu']}, {result['date'][:10]}",
        fontsize=9,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    draw(json.loads(args.result.read_text()), args.target)


if __name__ == "__main__":
    main()
