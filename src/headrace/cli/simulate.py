"""`headrace simulate`: a fleet on a fake clock."""

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from headrace.bench.report import machine_name
from headrace.bench.simulate.options import SimulateOptions
from headrace.cli.flags import Parser, add_config, config_values
from headrace.config import env
from headrace.config.load import load
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    """Simulate and report, or calibrate. 1 if no request was answered."""
    parser = make_parser(argv)
    flags = config_values(SimulateOptions, parser.parse(argv))
    options = load(SimulateOptions, environment={}, flags=flags).config
    return (
        _simulate(options) if options.calibrate is None else _calibrate(options.calibrate, options)
    )


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of the simulation's flags."""
    parser = Parser("headrace simulate", "Play a load against a fleet on a fake clock.")
    add_config(parser, SimulateOptions, argv)
    return parser


def _calibrate(url: str, options: SimulateOptions) -> int:
    from headrace.bench.simulate.calibrate import calibrate
    from headrace.bench.simulate.profile import write_profile

    profile = calibrate(
        url,
        env.get("OPENAI_API_KEY"),
        SystemClock(),
        seed=options.seed,
        budget=options.step_tokens,
        boot_seconds=options.place.boot_time,
        show=lambda text: print(f"  {text}", flush=True),
    )
    profile = replace(profile, machine=machine_name())
    write_profile(profile, options.out)
    step = profile.step
    print(
        f"{options.out}: {profile.model}; a step takes {1000 * step.fixed:.2f} ms, "
        f"{1000 * step.prefill_token:.3f} ms a prompt token, {1000 * step.decode_row:.2f} ms a decoding sequence, "
        f"{1e6 * step.attended_token:.3f} us an attended token, {1000 * profile.request_seconds:.1f} ms a request; "
        f"residual {100 * (profile.residual or 0.0):.1f} %"
    )
    return 0


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
