"""`headrace simulate`: a fleet on a fake clock."""

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.bench.simulate.options import SimulateOptions
from headrace.cli.flags import Parser, add_config, config_values
from headrace.config.load import load
from headrace.core.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Simulate and report. 1 if no request was answered."""
    parser = make_parser(argv)
    flags = config_values(SimulateOptions, parser.parse(argv))
    options = load(SimulateOptions, environment={}, flags=flags).config
    return _simulate(options)


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of the simulation's flags."""
    parser = Parser("headrace simulate", "Play a load against a fleet on a fake clock.")
    add_config(parser, SimulateOptions, argv)
    return parser


def _simulate(options: SimulateOptions) -> int:
    from headrace.bench.simulate.picture import draw
    from headrace.bench.simulate.report import decision_log, table, to_json
    from headrace.bench.simulate.run import simulate

    report = simulate(options)
    out = sys.stderr if options.json == "-" else sys.stdout
    print(table(report), file=out)
    if report.decisions:
        print(decision_log(report), file=out)
    if options.json == "-":
        sys.stdout.write(to_json(report))
    elif options.json is not None:
        _write(options.json, to_json(report))
    if options.svg is not None:
        _write(options.svg, draw(report))
    return 0 if report.num_requests > sum(report.errors.values()) else 1


def _write(target: str, text: str) -> None:
    try:
        Path(target).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}.") from None
