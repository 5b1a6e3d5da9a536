"""The table of docs/guides/backends.md is what the adapters do."""

import re
from pathlib import Path

from tests.support.wire_answers import backend, call

from headrace.config.fleet.replicas import Dialect, ReplicaApi
from headrace.config.secret import Secret
from headrace.core.errors import BadRequestError
from headrace.fleet.backends.registry import BACKENDS
from headrace.fleet.backends.values import CHAT, COMPLETIONS, Backend, Outgoing, ResumePoint

GUIDE = Path(__file__).parents[4] / "docs/guides/backends.md"
BODIES = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"model": "m", "prompt": "x"},
}


def test_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", GUIDE.read_text(), re.MULTILINE)
    written = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert written == {str(dialect): row(dialect) for dialect in BACKENDS}


def test_every_dialect_has_an_adapter() -> None:
    assert set(BACKENDS) == set(Dialect)


def row(dialect: Dialect) -> list[str]:
    found = backend(dialect)
    return [
        path(found.health_probe()), path(found.load_probe()), path(found.models_probe()),
        spoken(dialect, CHAT), spoken(dialect, COMPLETIONS), resumed(dialect),
    ]  # fmt: skip


def path(probe: Outgoing | None) -> str:
    return "–" if probe is None else f"`{probe.path}`"


def spoken(dialect: Dialect, route: str) -> str:
    said = []
    for api in (ReplicaApi.AUTO, ReplicaApi.OPENAI, ReplicaApi.NATIVE):
        found = backend(dialect, api=api)
        asked = call(BODIES[route], route)
        try:
            found.outgoing(asked)
        except BadRequestError:
            said.append("–")
        else:
            said.append("as it is" if found.reader(asked, {}) is None else "translated")
    usual, *others = said
    other = next((word for word in others if word != usual), None)
    return usual if other is None else f"{usual}, or {other}"


def resumed(dialect: Dialect) -> str:
    def ways(found: Backend) -> str:
        progress = ResumePoint(text="x", token_ids=(1,), num_tokens=1)
        said = []
        for name, route in (("chat", CHAT), ("completion", COMPLETIONS)):
            going_on = found.resume(call(BODIES[route], route), progress)
            if going_on is not None:
                said.append((name, "tokens" if b"prior_output_ids" in going_on.body else "text"))
        if len(said) == 2 and said[0][1] == said[1][1]:
            return f"by {said[0][1]}"
        return ", ".join(f"{name} by {way}" for name, way in said) or "–"

    usual = ways(backend(dialect))
    trusted = ways(backend(dialect, peer_token=Secret("p")))
    return usual if usual == trusted else f"{trusted}, or {usual}"
