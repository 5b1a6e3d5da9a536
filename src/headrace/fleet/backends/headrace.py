"""headrace itself: `/readyz`, `/load`, continuation from token ids, cancelling by closing."""

from typing import ClassVar

from msgspec import structs

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.core.stats import ReplicaState
from headrace.fleet.backends import reading
from headrace.fleet.backends.openai import OpenAIBackend
from headrace.fleet.backends.values import Continuation, Health, Incoming, Load, Outgoing

PEER_HEADER = "x-headrace-peer"
#: Whom a trusted gateway asks for: responses are kept apart by it.
OWNER_HEADER = "x-headrace-owner"


class HeadraceBackend(OpenAIBackend):
    """With a peer token it tells token ids and goes on exactly; without one, by text."""

    dialect: ClassVar = Dialect.HEADRACE
    health_path: ClassVar = "/readyz"
    load_path: ClassVar = "/load"
    keeps_responses: ClassVar = True

    def __init__(self, spec: ReplicaSpec) -> None:
        super().__init__(spec)
        way = Continuation.TOKENS if spec.peer_token else Continuation.TEXT
        self.chat = self.completions = way
        if spec.peer_token:
            self._headers[PEER_HEADER] = str(spec.peer_token)

    def outgoing(self, call: Incoming) -> Outgoing:
        """The same bytes, and whose they are."""
        return self._owned(super().outgoing(call), call.owner)

    def stored(self, method: str, path: str, owner: str) -> Outgoing | None:
        """For this owner alone."""
        made = super().stored(method, path, owner)
        return None if made is None else self._owned(made, owner)

    def _owned(self, made: Outgoing, owner: str) -> Outgoing:
        if not owner or PEER_HEADER not in self._headers:
            return made
        return structs.replace(made, headers={**made.headers, OWNER_HEADER: owner})

    def read_health(self, status: int, body: bytes) -> Health:
        """200, or 503 with the reason: loading, draining, full."""
        if status == 200:
            return Health(True)
        said = reading.table(reading.decode(body))
        error = reading.table(said.get("error"))
        words = (error.get("message"), said.get("reason"), said.get("state"), said.get("status"))
        return Health(False, next(filter(None, map(reading.text, words)), f"status {status}"))

    def read_load(self, status: int, body: bytes) -> Load:
        """`core.stats.LoadReport`, read leniently: fields may come."""
        said = reading.table(reading.decode(body)) if status == 200 else {}
        names = ("num_running", "num_waiting", "kv_usage", "max_num_seqs", "outstanding_tokens")
        return Load(
            num_running=reading.count(said.get("num_running")),
            num_waiting=reading.count(said.get("num_waiting")),
            kv_usage=reading.share(said.get("kv_usage")),
            max_running=reading.count(said.get("max_num_seqs")) or None,
            outstanding_tokens=reading.count(said.get("outstanding_tokens")),
            uptime=reading.share(said.get("uptime_seconds")),
            prefix_hit_rate=reading.share(said.get("prefix_hit_rate")),
            busy=reading.share(said.get("busy")),
            is_draining=said.get("state") == ReplicaState.DRAINING,
            missing=tuple(name for name in names if reading.share(said.get(name)) is None),
        )
