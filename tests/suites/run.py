"""Run suites that others wrote against a live server, and write down what passed and why the rest did not.

Nothing of theirs is kept here: they come from PyPI and npm into build/. Ends with status 1 when a failure has
no explanation in reasons.toml.
"""

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import drivers  # noqa: E402
from cases import Report  # noqa: E402
from tests.support.tiny_models import make_tiny_llama  # noqa: E402

from headrace.cli.local_server import local_server  # noqa: E402

RESULTS = ROOT / "docs" / "results" / "suites.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- suites: written by tests/suites/run.py -->", "<!-- suites: end -->"
#: Small context and a default bound: several tests of llama.cpp's send none.
SERVER = [drivers.MODEL, "--default-max-tokens", "64", "--max-context", "512"]
#: They name models of their own, too.
LLAMA = [
    *SERVER,
    "--metrics-names",
    "all",
    "--dialect",
    "llama.cpp",
    "--accept-any-model",
    "--served-model-name",
    "tinyllama-2",
]


def run(names: Sequence[str], build: Path) -> Iterator[Report]:
    """The reports of these suites, each with a server of its own."""
    suites: dict[str, tuple[list[str], Callable[[str], Report | list[Report]]]] = {
        "llama.cpp": (LLAMA, drivers.llama_cpp),
        "llm-comply": (
            [drivers.MODEL, "--default-max-tokens", "256", "--strict"],
            drivers.llm_comply,
        ),
        "compatcanary": ([drivers.MODEL], drivers.compatcanary),
        "lm-eval": ([drivers.MODEL, "--max-context", "512"], drivers.lm_eval),
        "schemathesis": (
            [str(make_tiny_llama(build / "tiny", max_context=256)), "--default-max-tokens", "4"],
            drivers.schemathesis,
        ),
    }
    for name in names or suites:
        options, drive = suites[name]
        print(f"{name} ...", flush=True)
        with local_server(options, ready_timeout=120) as server:
            found = drive(server.url)
        yield from found if isinstance(found, list) else [found]


def table(reports: Sequence[Report]) -> str:
    """Counts, a suite a line."""
    lines = [
        "| suite | passed | failed, explained below | skipped by the suite |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {r.suite} | {r.count('passed')} of {len(r.cases)} | {r.count('failed')} | {r.count('skipped')} |"
        for r in reports
    ]
    return "\n".join(lines)


def document(reports: Sequence[Report]) -> str:
    """The page of results."""
    parts = [
        "# Suites that others wrote",
        f"`make suites` against a live server with SmolLM2-135M, {datetime.date.today()}. "
        "The real llama.cpp server passes 87 of its own tests in this mode with this model, because the others want "
        "another model or flags at the start.",
        table(reports),
    ]
    for report in reports:
        parts.append(f"## {report.suite}\n\n{report.source}.")
        groups: dict[str, list[str]] = {}
        for case, why in report.failures():
            groups.setdefault(why or f"**Not explained**: {case.detail}", []).append(case.name)
        for why, names in groups.items():
            shown = "\n".join(f"- `{name.replace('|', chr(92) + '|')[:110]}`" for name in names)
            parts.append(f"{why} ({len(names)}):\n\n{shown}")
        if not groups:
            parts.append("Nothing fails.")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "suites", nargs="*", help="llama.cpp, llm-comply, compatcanary, schemathesis"
    )
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    build = ROOT / "build" / "suites"
    build.mkdir(parents=True, exist_ok=True)
    reports = list(run(arguments.suites, build))
    page = document(reports)
    if arguments.suites or arguments.no_write:
        print(page)
    else:
        RESULTS.write_text(page)
        text = README.read_text()
        head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
        README.write_text(f"{head}{BEGIN}\n\n{table(reports)}\n\n{tail}")
    unexplained = [case.name for r in reports for case, why in r.failures() if why is None]
    print(f"{len(unexplained)} failures without an explanation: {unexplained}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
