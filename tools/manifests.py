"""Write deploy/kubernetes from the Helm chart and its default values, for clusters without Helm.

`python tools/manifests.py` writes the file; with `--check` it only says whether it is out of date.
"""

import sys
from pathlib import Path

import yaml
from helm_subset import render_chart

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = DEPLOY / "helm" / "headrace"
OUT = DEPLOY / "kubernetes" / "headrace.yaml"
NOTE = (
    "# Written by tools/manifests.py from deploy/helm/headrace and its default values; `make docs` renews it.\n"
    '#   kubectl create secret generic headrace-peer --from-literal=token="$(openssl rand -hex 32)"\n'
    "#   kubectl apply -f headrace.yaml\n"
)


def main() -> int:
    """0, or 1 if --check found the file out of date."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = NOTE + render_chart(CHART, values, "default")
    current = OUT.read_text() if OUT.exists() else ""
    if "--check" in sys.argv[1:]:
        if text != current:
            sys.stderr.write("Out of date: deploy/kubernetes/headrace.yaml. Run `make docs`.\n")
        return int(text != current)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
