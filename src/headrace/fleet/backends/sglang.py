"""SGLang: `/health`, gauges under `sglang:` names (with --enable-metrics), abort by request id."""

from typing import ClassVar

import msgspec

from headrace.config.fleet.replicas import Dialect
from headrace.fleet.backends.gauged import MAX_RUNNING, RUNNING, USAGE, WAITING, GaugedBackend
from headrace.fleet.backends.prometheus import Aliases
from headrace.fleet.backends.values import Continuation, Outgoing


class SglangBackend(GaugedBackend):
    """Metrics had `_` for `:` for a while; both are read."""

    dialect: ClassVar = Dialect.SGLANG
    keeps_responses: ClassVar = True
    chat = Continuation.TEXT
    aliases: ClassVar[Aliases] = {
        RUNNING: ("sglang:num_running_reqs", "sglang_num_running_reqs"),
        WAITING: ("sglang:num_queue_reqs", "sglang_num_queue_reqs"),
        USAGE: ("sglang:token_usage", "sglang_token_usage"),
        MAX_RUNNING: ("sglang:max_running_requests", "sglang_max_running_requests"),
    }
    optional: ClassVar = frozenset({MAX_RUNNING})

    def abort(self, request_id: str) -> Outgoing | None:
        """`/abort_request` by `rid`: beside closing, for requests that carry their id as `rid`."""
        if not request_id:
            return None
        return Outgoing(
            path=self._base + "/abort_request",
            body=msgspec.json.encode({"rid": request_id}),
            headers=self._headers,
        )
