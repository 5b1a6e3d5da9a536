"""Tables and plots of a cost-growth result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def markdown(result: Mapping[str, Any]) -> str:
    """All tables. Beside each step time, what one more sequence or token costs since the row before."""
    model = result["options"]["model"]
    parts = [
        f"# Cost growth, {model}, {result['date'][:10]}\n",
        f"{result['machine']['cpu']}, {result['machine']['cpus']} cores.\n",
        "## Step time against batch size\n",
        _table(
            ["sequences", "context", "step, ms", "ms per further sequence", "tok/s"],
            [
                [row["batch"], row["context"], *_growth(row, before, "batch", "{:.3f}"), _rate(row)]
                for row, before in _pairs(result["batch"])
            ],
        ),
        "## Step time and prefill against context\n",
        _table(
            [
                "sequences",
                "context",
                "step, ms",
                "µs per further 1,000 tokens of all",
                "prefill tok/s",
            ],
            [
                [row["batch"], row["context"], *_context_growth(row, before), _prefill(row)]
                for row, before in _pairs(result["context"])
            ],
        ),
        "## Step time against threads\n",
        _table(
            ["threads", "sequences", "step, ms", "prefill tok/s"],
            [
                [row["threads"], row["batch"], f"{1e3 * row['step_seconds']:.2f}", _prefill(row)]
                for row in result["threads"]
            ],
        ),
        "## Throughput with requests waiting\n",
        "Over HTTP, closed loop, 32 words in, 16 tokens out; 64 run, the others wait.\n",
        _table(
            ["waiting", "output tok/s", "time to first token, p95, s"],
            [
                [row["waiting"], f"{row['output_tokens_per_second']:.0f}", f"{row['ttft_p95']:.1f}"]
                for row in result["queue"]
            ],
        ),
    ]
    return "\n".join(parts)


def draw(result: Mapping[str, Any], target: Path) -> None:
    """Three panels: batch, context, queue."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "headrace", "font.family": "sans-serif"})
    figure, (batch, context, queue) = plt.subplots(1, 3, figsize=(11.2, 3.2), layout="constrained")
    rows = result["batch"]
    batch.plot([r["batch"] for r in rows], [1e3 * r["step_seconds"] for r in rows], marker="o")
    batch.set(title="step time, ms", xlabel="sequences of 256 tokens", ylim=(0, None))
    for size in dict.fromkeys(row["batch"] for row in result["context"]):
        some = [row for row in result["context"] if row["batch"] == size]
        times = [1e3 * row["step_seconds"] for row in some]
        context.plot([row["context"] for row in some], times, marker="o", label=f"{size} sequences")
    context.set(title="step time, ms", xlabel="tokens of each sequence", ylim=(0, None))
    context.legend(frameon=False)
    rows = result["queue"]
    rates = [row["output_tokens_per_second"] for row in rows]
    queue.plot([row["waiting"] for row in rows], rates, marker="o")
    queue.set(title="output tokens per second", xlabel="requests waiting", ylim=(0, None))
    for axes in (batch, context, queue):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row | None]]:
    return list(zip(rows, [None, *rows], strict=False))


def _growth(row: Row, before: Row | None, key: str, form: str) -> list[str]:
    step = f"{1e3 * row['step_seconds']:.2f}"
    if before is None or row[key] <= before[key]:
        return [step, ""]
    slope = 1e3 * (row["step_seconds"] - before["step_seconds"]) / (row[key] - before[key])
    return [step, form.format(slope)]


def _context_growth(row: Row, before: Row | None) -> list[str]:
    step = f"{1e3 * row['step_seconds']:.2f}"
    if before is None or before["batch"] != row["batch"]:
        return [step, ""]
    tokens = row["batch"] * (row["context"] - before["context"])
    return [step, f"{1e9 * (row['step_seconds'] - before['step_seconds']) / tokens:.0f}"]


def _rate(row: Row) -> str:
    return f"{row['batch'] / row['step_seconds']:,.0f}"


def _prefill(row: Row) -> str:
    return f"{row['prefill_tokens_per_second']:,.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|--:" * len(head) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
