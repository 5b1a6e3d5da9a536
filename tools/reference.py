"""Write docs/reference from the source: settings, commands, metrics, errors.

`python tools/reference.py` writes the files; with `--check` it only says which are out of date.
"""

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from fleet_reference import fleet

from headrace.bench.analyze.options import AnalyzeOptions
from headrace.bench.options import BenchOptions
from headrace.bench.plan.options import PlanOptions
from headrace.bench.simulate.options import SimulateOptions
from headrace.cli.chat import ChatOptions
from headrace.cli.flags import shown_default
from headrace.cli.main import COMMANDS
from headrace.config import docs
from headrace.config.fields import ConfigField, describe, sections
from headrace.config.root import ServeConfig
from headrace.core import errors
from headrace.observe import catalogue

OUT = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by tools/reference.py from the source; `make docs` renews it. -->\n"


def main() -> int:
    """0, or 1 if --check found a file out of date."""
    pages = {
        "configuration.md": configuration(),
        "fleet.md": fleet(),
        "commands.md": commands(),
        "metrics.md": metrics(),
        "errors.md": error_tree(),
    }
    stale = [name for name, text in pages.items() if _current(OUT / name) != NOTE + text]
    if "--check" in sys.argv[1:]:
        if stale:
            sys.stderr.write(f"Out of date: {', '.join(stale)}. Run `make docs`.\n")
        return 1 if stale else 0
    OUT.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (OUT / name).write_text(NOTE + pages[name], encoding="utf-8")
    return 0


def configuration() -> str:
    """Every setting of `headrace serve`, by section of the file."""
    fields = describe(ServeConfig)
    lines = [
        "# Configuration",
        "",
        "A setting is looked up in this order; the first that has it wins: the flag, the environment",
        "variable, the TOML file named by `--config` or `HEADRACE_CONFIG`, the default. An unknown key or",
        "a value out of range ends the start with one sentence. `headrace doctor` shows every value and",
        "where it came from.",
        "",
        "Sizes may carry a unit (`512MiB`, `4G`), durations too (`50ms`, `30s`, `2m`). A variable or flag",
        "with the value `none` unsets an optional setting. Lists take commas or spaces.",
        "",
        *_example(),
    ]
    for path, owner in sections(ServeConfig).items():
        own = [field for field in fields if field.owner is owner]
        if own:
            lines += ["", f"## [{path}]", "", docs.summary(owner), ""]
            for field in own:
                lines += _setting(field)
    return "\n".join(lines).rstrip("\n") + "\n"


def _example() -> list[str]:
    return [
        "```toml",
        "# headrace.toml",
        "[server]",
        "port = 9000",
        "",
        "[engine.model]",
        'model = "smollm2-135m"',
        "",
        "[engine.scheduler]",
        "max_num_seqs = 32",
        "```",
    ]


def _setting(field: ConfigField) -> list[str]:
    choices = dict(_choice_docs(field))
    facts = [f"`{field.flag}`", f"`{field.variable}`", field.expected]
    default = shown_default(field)
    facts.append(default or "no default")
    lines = [f"**`{field.attribute}`** — {docs.text(field)}", f"<br>{' · '.join(facts)}", ""]
    lines += [f"- `{name}`: {text}" for name, text in choices.items()]
    return [*lines, ""] if choices else lines


def _choice_docs(field: ConfigField) -> Iterator[tuple[str, str]]:
    if isinstance(field.default, Enum):
        texts = docs.field_docs(type(field.default))
        for member in type(field.default):
            if member.name in texts:
                yield str(member.value), texts[member.name]


def commands() -> str:
    """The commands, and the options of those that have their own."""
    lines = ["# Commands", ""]
    lines += [f"- `headrace {name}` — {command.summary}" for name, command in COMMANDS.items()]
    lines += [
        "",
        "Exit status: 0 done, 1 failed, 2 the command line or configuration is wrong, 130 interrupted.",
        "`--debug` shows where an error came from. `headrace serve [MODEL]` and `headrace doctor` take",
        "the settings of [Configuration](configuration.md) as flags; `headrace models` takes `list`,",
        "`pull NAME`, `remove NAME` and `verify NAME`.",
        "",
    ]
    for name, root in {
        "chat": ChatOptions,
        "bench": BenchOptions,
        "plan": PlanOptions,
        "analyze": AnalyzeOptions,
        "simulate": SimulateOptions,
    }.items():
        lines += [f"## headrace {name}", "", "| Option | Default | Meaning |", "|---|---|---|"]
        for field in describe(root):
            default = shown_default(field).removeprefix("default ")
            lines.append(f"| `{field.flag}` | {default} | {docs.text(field)} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def metrics() -> str:
    """The metric catalogue."""
    return (
        "# Metrics\n\nServed on `/metrics`, and under vLLM's names on `/metrics/vllm` (on `/metrics` too "
        "with `--metrics-names both`).\n\n" + catalogue.markdown()
    )


def error_tree() -> str:
    """Every exception, with the HTTP status it becomes."""
    return f"# Errors\n\n```text\n{(errors.__doc__ or '').strip()}\n```\n"


def _current(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
