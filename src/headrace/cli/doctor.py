"""`headrace doctor`: what was detected, what was chosen, and why. Takes the flags of `headrace serve`."""

import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace import __version__
from headrace.cli import serve
from headrace.cli.flags import Parser
from headrace.cli.serve import load_config
from headrace.config import env
from headrace.config.fields import describe
from headrace.config.load import Loaded
from headrace.config.root import ServeConfig
from headrace.config.secret import Secret
from headrace.config.units import format_size
from headrace.core.errors import HeadraceError

Section = list[tuple[str, str, str]]
"""Rows of (what, value, why)."""


def main(argv: Sequence[str]) -> int:
    """Print the findings; 1 if one of them stands in the way of serving."""
    arguments = make_parser(argv).parse(argv)
    findings, problems = examine(load_config(arguments))
    if "json" in arguments:
        report = {"findings": findings, "problems": problems}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        for title, rows in findings.items():
            print(f"{title}\n{_table(rows)}\n")
        for problem in problems:
            print(f"Problem: {problem}")
    return 1 if problems else 0


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of the serving flags and --json."""
    parser = serve.make_parser(
        argv, "headrace doctor", "Show what was detected, what was chosen, and why."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def examine(loaded: Loaded[ServeConfig]) -> tuple[dict[str, Section], list[str]]:
    """Findings by title, and the sentences of what went wrong."""
    parts: dict[str, Callable[[Loaded[ServeConfig]], Section]] = {
        "versions": _versions,
        "machine": _machine,
        "kernels": _kernels,
        "model": _model,
        "cache": _cache,
        "configuration": _configuration,
    }
    findings: dict[str, Section] = {}
    problems = []
    for title, part in parts.items():
        try:
            findings[title] = part(loaded)
        except HeadraceError as error:
            findings[title] = [("error", str(error), "")]
            problems.append(str(error))
    return findings, problems


def _versions(_: Loaded[ServeConfig]) -> Section:
    return [
        ("headrace", __version__, ""),
        ("python", platform.python_version(), sys.executable),
        ("system", f"{platform.system()} {platform.release()}", platform.machine()),
    ]


def _machine(loaded: Loaded[ServeConfig]) -> Section:
    from headrace.kernels.topology import detect

    found = detect()
    memory = loaded.config.engine.memory
    quota = "none" if found.cpu_quota is None else f"{found.cpu_quota:g} CPUs"
    return [
        ("CPUs", str(found.num_cpus), "of the affinity mask"),
        ("cores", str(found.num_cores), "hyperthreads of one core count once"),
        ("CPU quota", quota, "of the cgroups"),
        ("compute threads", str(found.num_threads), "one per core, as far as the quota reaches"),
        ("memory", format_size(found.memory_total), "of the machine or the tightest cgroup"),
        ("memory free", format_size(found.memory_available), "without swapping"),
        ("KV, at most", format_size(found.memory_available // 4), "when kv_memory is auto"),
        ("KV format", memory.kv_format, f"kv_dtype is {memory.kv_dtype}"),
    ]


def _kernels(loaded: Loaded[ServeConfig]) -> Section:
    from headrace.kernels.dispatch import explain

    executor = loaded.config.engine.executor
    return [
        (choice.op, choice.implementation, choice.reason)
        for choice in explain(executor.backend, executor.isa, executor.threads)
    ]


def _model(loaded: Loaded[ServeConfig]) -> Section:
    """What is known of the model without fetching it."""
    from headrace.modeling.weights.sources import SHORT_NAMES, list_models

    name = loaded.config.engine.model.model
    held = next((m for m in list_models() if name in (m.name, m.source)), None)
    if held is not None:
        return [(name, str(held.path), f"in the cache, {format_size(held.num_bytes)}")]
    kind = "a short name, fetched when served" if name in SHORT_NAMES else "a path or source"
    return [(name, "", kind)]


def _cache(_: Loaded[ServeConfig]) -> Section:
    home = env.cache_home()
    rows = [("directory", str(home), "HEADRACE_CACHE, else the XDG cache")]
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        if folder.is_dir():
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            rows.append((folder.name, format_size(size), ""))
    return rows


def _configuration(loaded: Loaded[ServeConfig]) -> Section:
    return [
        (field.path, _shown(loaded.config, field.path), loaded.origins[field.path])
        for field in describe(ServeConfig)
    ]


def _shown(config: ServeConfig, path: str) -> str:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    if isinstance(value, Secret):
        return "***"
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _table(rows: Section) -> str:
    left = max((len(what) for what, _, _ in rows), default=0)
    middle = min(48, max((len(value) for _, value, _ in rows), default=0))
    lines = (f"  {what:{left}}  {value:{middle}}  {why}".rstrip() for what, value, why in rows)
    return "\n".join(lines)
