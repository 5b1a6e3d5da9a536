"""Metrics of a gateway by replica: a part of the catalogue, which shows them with all others."""

from headrace.observe.metric import DURATION, LATENCY, Kind, Metric

REPLICA_REQUESTS = Metric(
    "headrace_gateway_replica_requests_total", Kind.COUNTER, "requests",
    "Requests sent to a replica, by outcome: ok, refused (the client's fault), cancelled (the client left), superseded "
    "(another replica was faster), or why it failed: connect, first_byte, stalled, cut, garbage, status, overloaded, refused_us.",
    ("replica", "outcome"), server_wide=True,
)  # fmt: skip
REPLICA_TIME = Metric(
    "headrace_gateway_replica_request_duration_seconds", Kind.HISTOGRAM, "seconds",
    "From sending a request to a replica to the end of its answer, of those that were answered.",
    ("replica",), buckets=DURATION, server_wide=True,
)  # fmt: skip
REPLICA_TTFT = Metric(
    "headrace_gateway_replica_time_to_first_token_seconds", Kind.HISTOGRAM, "seconds",
    "From sending a request to a replica to the first token of its stream.",
    ("replica",), buckets=LATENCY, server_wide=True,
)  # fmt: skip
REPLICA_RUNNING = Metric(
    "headrace_gateway_replica_requests_running", Kind.GAUGE, "requests",
    "Requests of this gateway that a replica has.", ("replica",), server_wide=True,
)  # fmt: skip
REPLICA_STANDING = Metric(
    "headrace_gateway_replica_standing", Kind.GAUGE, "boolean",
    "1 for the standing that a replica has: ready, unknown, unready, ejected or draining.",
    ("replica", "standing"), server_wide=True,
)  # fmt: skip
GATEWAY_RETRIES = Metric(
    "headrace_gateway_retries_total", Kind.COUNTER, "requests",
    "Times that a request was tried again before its first byte, by why the try before it failed.",
    ("reason",), server_wide=True,
)  # fmt: skip
GATEWAY_RESUMPTIONS = Metric(
    "headrace_gateway_resumptions_total", Kind.COUNTER, "streams",
    "Times that a stream which broke off was gone on with by another replica, by why it broke off.",
    ("reason",), server_wide=True,
)  # fmt: skip

#: Those whose first label is a replica.
BY_REPLICA = (REPLICA_REQUESTS, REPLICA_TIME, REPLICA_TTFT, REPLICA_RUNNING, REPLICA_STANDING)
