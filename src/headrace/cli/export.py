"""`headrace export rules|boards`: files for Prometheus and Grafana."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.flags import Parser
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.root import FleetConfig
from headrace.core.errors import ConfigError

_NOTE = "# Written by `headrace export rules`; change the fleet's objectives and write it again.\n"


def main(argv: Sequence[str]) -> int:
    """Rules go to standard output or --out; boards to the directory --out."""
    arguments = make_parser().parse(argv)
    out = arguments.get("out")
    if arguments["what"] == "boards":
        if out is None or arguments.get("file"):
            raise ConfigError("`headrace export boards` takes --out DIRECTORY, and no fleet.")
        directory = Path(out).expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        for name, board in board_texts().items():
            (directory / name).write_text(board, encoding="utf-8")
        return 0
    file = arguments.get("file")
    text = rules_text(FleetConfig() if file is None else read_fleet(Path(file).expanduser()))
    if out is None:
        sys.stdout.write(text)
    else:
        Path(out).expanduser().write_text(text, encoding="utf-8")
    return 0


def make_parser() -> Parser:
    """The parser of `headrace export`."""
    parser = Parser(
        "headrace export", "Files for Prometheus and Grafana.", "rules|boards [FLEET.yaml]"
    )
    parser.add_argument(
        "what", metavar="WHAT", choices=("rules", "boards"),
        help="rules: a rule file for Prometheus; boards: dashboards for Grafana",
    )  # fmt: skip
    parser.add_argument(
        "file", metavar="FLEET.yaml", nargs="?", help="the fleet whose objectives become rules"
    )
    parser.add_argument("--out", metavar="PATH", help="a file for rules, a directory for boards")
    return parser


def rules_text(config: FleetConfig) -> str:
    """The rule file."""
    import yaml

    from headrace.observe.export.rules import rule_groups

    text: str = yaml.safe_dump(rule_groups(config), sort_keys=False, width=120, allow_unicode=True)
    return _NOTE + text


def board_texts() -> dict[str, str]:
    """JSON of every board by the name of its file."""
    from headrace.observe.export.boards import board_json, boards

    return {
        f"{board.name}.json": json.dumps(board_json(board), indent=1, ensure_ascii=False) + "\n"
        for board in boards()
    }
