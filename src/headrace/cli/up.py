"""`headrace up FLEET.yaml` and `headrace down FLEET.yaml`."""

from collections.abc import Sequence
from pathlib import Path

from headrace.cli.doubts import tell_doubts
from headrace.cli.flags import Parser
from headrace.config.fleet.read import read_fleet
from headrace.config.units import parse_duration
from headrace.core.clock import SystemClock


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C, then stop the replicas. SIGHUP reads the file again."""
    parser = Parser(
        "headrace up", "A gateway, and replicas as they are needed, by one command.", "FLEET.yaml"
    )
    parser.add_argument("file", metavar="FLEET.yaml", help="the fleet's configuration, with pools")
    parser.add_argument("--keep", action="store_true", help="let the replicas run on at the end")
    parser.add_argument(
        "--check", action="store_true", help="only read the file, and say if it is good"
    )
    arguments = parser.parse(argv)
    file = Path(arguments["file"]).expanduser()
    config = read_fleet(file)
    # Imported now, so that help and a file that cannot be read do not wait for it.
    from headrace.fleet.autoscaler.companion import autoscaler_of
    from headrace.fleet.up.run import check_fleet, run_up

    if arguments.get("check"):
        from headrace.fleet.gateway.check import check_replicas

        check_fleet(config)
        tell_doubts(check_replicas(config))
        print(f"{file} is good: {len(config.pools)} pool{'' if len(config.pools) == 1 else 's'}.")
        return 0
    return run_up(
        file,
        config,
        keeps=bool(arguments.get("keep")),
        companion=autoscaler_of(file),
        clock=SystemClock(),
        tell=_tell,
    )


def down_main(argv: Sequence[str]) -> int:
    """End the controller and stop all replicas. 1 if some are left."""
    parser = Parser("headrace down", "Stop a fleet: its gateway and its replicas.", "FLEET.yaml")
    parser.add_argument("file", metavar="FLEET.yaml", help="the fleet's configuration")
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        default="30",
        help="how long replicas may finish what they have",
    )
    arguments = parser.parse(argv)
    try:
        grace = parse_duration(arguments["grace"])
    except ValueError as error:
        parser.error(f"--grace: {str(error).rstrip('.')}")
    file = Path(arguments["file"]).expanduser()
    config = read_fleet(file)
    from headrace.fleet.up.run import run_down

    return run_down(file, config, grace=grace, clock=SystemClock(), tell=_tell)


def _tell(words: str) -> None:
    print(words, flush=True)
