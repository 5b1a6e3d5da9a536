"""`headrace bench`: load any OpenAI-compatible server and measure."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.bench.measure import Summary
from headrace.bench.options import BenchOptions
from headrace.bench.report import headline, table, to_json
from headrace.bench.session import measure
from headrace.cli.flags import Parser, add_config, config_values
from headrace.config import env
from headrace.config.load import load
from headrace.config.secret import Secret
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Run the load. 1 if no request succeeded."""
    parser = make_parser(argv)
    flags = config_values(BenchOptions, parser.parse(argv))
    options = load(BenchOptions, environment={}, flags=flags).config
    key = env.get("OPENAI_API_KEY")
    if options.api_key is None and key is not None:
        options = msgspec.structs.replace(options, api_key=Secret(key))
    out = sys.stderr if options.json == "-" else sys.stdout

    def show(summary: Summary) -> None:
        print(table(summary) + "\n", file=out, flush=True)

    report = measure(options, SystemClock(), on_run=show)
    print(headline(report), file=out)
    _write(options.json, to_json(report))
    return 0 if any(run.num_ok for run in report.runs) else 1


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of the measuring flags."""
    parser = Parser("headrace bench", "Load any OpenAI-compatible server and measure.")
    add_config(parser, BenchOptions, argv)
    return parser


def _write(target: str | None, text: str) -> None:
    if target == "-":
        sys.stdout.write(text)
    elif target is not None:
        try:
            Path(target).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"The report {target} cannot be written: {error.strerror}.") from None
