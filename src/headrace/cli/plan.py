"""`headrace plan MODEL`: what fits on a machine, how fast it is, and how many replicas users need."""

import sys
from collections.abc import Sequence

from headrace.bench.plan.options import PlanOptions
from headrace.cli.flags import Parser, add_config, config_values
from headrace.config.load import load
from headrace.core.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Plan. 1 if the objectives cannot be kept on that machine."""
    parser = make_parser(argv)
    arguments = parser.parse(argv)
    options = load(PlanOptions, environment={}, flags=config_values(PlanOptions, arguments)).config
    if options.gpus == "list":
        _list()
        return 0
    if "model" not in arguments:
        raise ConfigError("Say which model: `headrace plan MODEL --gpus …`.")
    from headrace.bench.plan.report import table, to_json
    from headrace.bench.plan.run import plan

    found = plan(arguments["model"], options)
    if options.json:
        sys.stdout.write(to_json(found))
    else:
        print(table(found, users=options.users, context=options.context, slo=options.slo))
    return 0 if found.replicas else 1


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of a plan's flags."""
    text = "Say what fits on a machine, how fast it is, and how many replicas users need."
    parser = Parser("headrace plan", text, "MODEL")
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="GGUF file, model directory, its config.json, or a short name",
    )
    add_config(parser, PlanOptions, argv)
    return parser


def _list() -> None:
    from headrace.bench.plan.accelerators import ACCELERATORS
    from headrace.cli.tables import table

    rows = [
        {
            "name": name,
            "memory GB": one.memory / 1e9,
            "GB/s": one.bandwidth / 1e9,
            "TFLOPS": one.flops / 1e12,
            "fp8": one.fp8_flops / 1e12,
            "source": one.source,
        }
        for name, one in ACCELERATORS.items()
    ]
    print(table(rows, ("name", "memory GB", "GB/s", "TFLOPS", "fp8", "source")))
