"""`headrace gateway FLEET.yaml`: one address in front of many replicas."""

from collections.abc import Sequence
from pathlib import Path

from headrace.cli.doubts import tell_doubts
from headrace.cli.flags import Parser
from headrace.config.fleet.read import read_fleet
from headrace.config.fleet.root import FleetConfig
from headrace.config.units import counted


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C. SIGHUP reads the file again."""
    parser = Parser("headrace gateway", "One address in front of many replicas.", "FLEET.yaml")
    parser.add_argument("file", metavar="FLEET.yaml", help="the fleet's configuration")
    parser.add_argument(
        "--check", action="store_true", help="only read the file, and say if it is good"
    )
    arguments = parser.parse(argv)
    file = Path(arguments["file"]).expanduser()
    config = read_fleet(file)
    # Imported now, so that help and a file that cannot be read do not wait for it.
    from headrace.fleet.gateway.run import check_parts, run_gateway

    check_parts(config)
    companion = None
    if config.pools:
        from headrace.fleet.autoscaler.companion import autoscaler_of
        from headrace.fleet.drivers.build import check_pools

        check_pools(config.pools)
        companion = autoscaler_of(file)
    if arguments.get("check"):
        from headrace.fleet.gateway.check import check_all

        tell_doubts(check_all(config))
        print(f"{file} is good: {_counted(config)}.")
        return 0
    return run_gateway(file, config, companion=companion)


def _counted(config: FleetConfig) -> str:
    counts = {"replica": len(config.replicas), "pool": len(config.pools)}
    if not config.pools:
        del counts["pool"]
    return ", ".join(counted(count, word) for word, count in counts.items())
