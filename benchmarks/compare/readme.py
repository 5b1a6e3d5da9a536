"""Writes the README's measured section from the newest result files, so that its figures cannot drift.

python benchmarks/compare/readme.py          (`make bench` does it after a whole comparison)
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report import markdown, ratios

BEGIN = "<!-- measured: written by benchmarks/compare/readme.py -->"
END = "<!-- measured: end -->"
MAIN = ("smollm2-135m", "4bit")
"""Model and precision that are shown in full."""
CLASSES = {"4bit": "4 bit", "8bit": "8 bit", "bf16": "bf16", "own": "the publisher's file"}

Result = Mapping[str, Any]


def update(root: Path) -> None:
    """README.md and docs/images/compare.svg, from benchmarks/results."""
    folder = root / "benchmarks" / "results"
    found = newest(comparisons(folder))
    if MAIN in found:
        shutil.copyfile(found[MAIN].with_suffix(".svg"), root / "docs" / "images" / "compare.svg")
    readme = root / "README.md"
    readme.write_text(replaced(readme.read_text(), section(folder)))


def section(folder: Path) -> str:
    """What stands between the two marks, of the results in `folder`."""
    found = newest(comparisons(folder))
    parts = []
    if MAIN in found:
        parts += [_main(json.loads(found[MAIN].read_text()))]
    rest = {key: path for key, path in found.items() if key != MAIN}
    if rest:
        parts.append(_others(rest))
    quality = [*_perplexities(folder), *_agreements(folder)]
    if quality:
        parts.append("Quality is held:\n\n" + "\n".join(quality) + "\n")
    parts.append("`make bench` repeats it on your machine; figures vary with it, so compare within"
                 " one run.\n")  # fmt: skip
    return "\n".join(parts)


def replaced(readme: str, text: str) -> str:
    """The README with another section. Raises ValueError if it lacks a mark."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("README.md lacks the marks of its measured section.")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def comparisons(folder: Path) -> list[Path]:
    """Result files of `make bench`: their names begin with a date."""
    return sorted(folder.glob("[0-9]*.json"))


def newest(paths: Sequence[Path]) -> dict[tuple[str, str], Path]:
    """The last file of each model and precision. File names sort by time."""
    found: dict[tuple[str, str], Path] = {}
    for path in sorted(paths):
        result = json.loads(path.read_text())
        found[str(result["work"]["model"]), str(result.get("precision", "4bit"))] = path
    return dict(sorted(found.items()))


def _main(result: Result) -> str:
    work = result["work"]
    files = ", ".join(f"{name} {file}" for name, file in result["files"].items())
    return (
        "![Throughput, time to first token and prefill speed beside other servers]"
        "(docs/images/compare.svg)\n\n"
        f"{work['model']}, {work['threads']} threads, closed loop, prompts of "
        f"{work['input_words']} random words, {work['output_tokens']} tokens out, greedy; "
        f"{_rounds(work['rounds'])} on one shared machine, {result['date'][:10]} "
        f"({result['machine']['cpu']}). OpenVINO GenAI runs in its own process, without HTTP.\n\n"
        f"{markdown(result)}\n"
        f"Versions: {', '.join(result['versions'].values())}. Files: {files}.\n"
    )


def _rounds(count: int) -> str:
    return "one round, all in turn" if count == 1 else f"medians of {count} rounds in turn"


def _others(found: Mapping[tuple[str, str], Path]) -> str:
    lines = [
        "Ratios of headrace to the best other in the other runs:\n",
        "| | date | output tok/s by clients | prefill tok/s by tokens | |",
        "|---|---|---|---|---|",
    ]
    for (model, precision), path in found.items():
        result = json.loads(path.read_text())
        best = ratios(result["medians"])
        cells = [
            f"{model}, {CLASSES.get(precision, precision)}",
            result["date"][:10],
            _inline(best.get("output_tokens_per_second", {})),
            _inline(best.get("prefill_tokens_per_second", {})),
            f"[tables](benchmarks/results/{path.stem}.md)",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _inline(values: Mapping[str, float]) -> str:
    return ", ".join(f"{key}: {value:.2f}×" for key, value in values.items()) or "–"


def _perplexities(folder: Path) -> list[str]:
    lines = []
    for path in sorted(folder.glob("perplexity-*.json")):
        result = json.loads(path.read_text())
        for file in result["files"]:
            ours = ", ".join(
                f"{score['perplexity']:.3f} ({kind} cache, {100 * (score['ratio'] - 1):+.2f} %)"
                for kind, score in file["ours"].items()
            )
            lines.append(
                f"- Perplexity, {file['tokens']:,} tokens of {result['text']}, {file['file']}: "
                f"headrace {ours}, llama-perplexity {file['llama.cpp']['perplexity']:.3f}"
            )
    return lines


def _agreements(folder: Path) -> list[str]:
    lines = []
    for path in sorted(folder.glob("agreement-*.json")):
        r = json.loads(path.read_text())
        lines.append(
            f"- {r['model']}, {r.get('kv_dtype', 'f16')} cache: our most likely token is llama.cpp's at {100 * r['same_top1']:.1f} % of "
            f"{r['positions']:,} positions, at {100 * r['same_top1_decided']:.1f} % of the "
            f"{r['decided']} where it is sure; KL to float32 is {r['kl_ratio']:.2f}× llama.cpp's own"
        )
    return lines


if __name__ == "__main__":
    update(Path(__file__).parent.parent.parent)
