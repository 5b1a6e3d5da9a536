"""Write the boards of deploy/grafana and the rules of deploy/prometheus from the catalogue of metrics.

`python tools/monitoring.py` writes the files; with `--check` it only says which are out of date.
"""

import sys
from pathlib import Path

from headrace.cli.export import board_texts, rules_text
from headrace.config.fleet.read import read_fleet

DEPLOY = Path(__file__).parents[1] / "deploy"


def main() -> int:
    """0, or 1 if --check found a file out of date, or a board that is no more."""
    prometheus, grafana = DEPLOY / "prometheus", DEPLOY / "grafana"
    wanted = {grafana / name: text for name, text in board_texts().items()}
    wanted[prometheus / "headrace.rules.yaml"] = rules_text(read_fleet(prometheus / "fleet.yaml"))
    gone = [path for path in grafana.glob("*.json") if path not in wanted]
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        if stale or gone:
            names = ", ".join(str(path.relative_to(DEPLOY.parent)) for path in stale + gone)
            sys.stderr.write(f"Out of date: {names}. Run `make docs`.\n")
        return int(bool(stale or gone))
    for path in gone:
        path.unlink()
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
