"""Metrics of a gateway by replica, by request and by money: a part of the catalogue, which shows them with all others."""

from headrace.observe.metric import DURATION, INTERVAL, LATENCY, Kind, Metric

REPLICA_REQUESTS = Metric(
    "headrace_gateway_replica_requests_total", Kind.COUNTER, "requests",
    "Requests sent to a replica, by outcome: ok, refused (the client's fault), cancelled (the client left), superseded "
    "(another replica was faster), or why it failed: connect, first_byte, stalled, cut, garbage, status, overloaded, model, refused_us.",
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

# Requests, as clients see them -----------------------------------------------------------------
_WHO = ("tenant", "priority")

REQUESTS = Metric(
    "headrace_gateway_requests_total", Kind.COUNTER, "requests",
    "Requests that ended, by result: ok; broken (a stream that ended with an error); failed (5xx); overloaded (429 of the "
    "fleet); limited (a limit of its key); refused (any other 4xx); left (the client left).",
    (*_WHO, "result"),
)  # fmt: skip
REQUEST_TTFT = Metric(
    "headrace_gateway_time_to_first_token_seconds", Kind.HISTOGRAM, "seconds",
    "From the arrival of a request at the gateway to the first token of its stream.",
    _WHO, buckets=LATENCY, genai="gen_ai.client.operation.time_to_first_chunk",
)  # fmt: skip
REQUEST_ITL = Metric(
    "headrace_gateway_inter_token_latency_seconds", Kind.HISTOGRAM, "seconds",
    "Between two tokens of a stream, as they reach the gateway.",
    _WHO, buckets=INTERVAL, genai="gen_ai.client.operation.time_per_output_chunk",
)  # fmt: skip
REQUEST_TPOT = Metric(
    "headrace_gateway_request_time_per_output_token_seconds", Kind.HISTOGRAM, "seconds",
    "Mean time between the tokens of a stream.", _WHO, buckets=INTERVAL,
)  # fmt: skip
REQUEST_TIME = Metric(
    "headrace_gateway_request_duration_seconds", Kind.HISTOGRAM, "seconds",
    "From the arrival of a request to the end of its answer, of those that were answered.",
    _WHO, buckets=DURATION, genai="gen_ai.client.operation.duration",
)  # fmt: skip
REQUEST_QUEUE_TIME = Metric(
    "headrace_gateway_request_queue_seconds", Kind.HISTOGRAM, "seconds",
    "How long a request waited for its turn, of those that got one.", _WHO, buckets=LATENCY,
)  # fmt: skip
REQUEST_TOKENS = Metric(
    "headrace_gateway_tokens_total", Kind.COUNTER, "tokens",
    "Tokens of requests by kind: input (computed), cached (of the prompt, out of a prefix cache), output.",
    (*_WHO, "kind"),
)  # fmt: skip

# Money -----------------------------------------------------------------------------------------
TENANT_COST = Metric(
    "headrace_gateway_tenant_cost_total", Kind.COUNTER, "money",
    "What a tenant's requests cost at the prices of their replicas.", ("tenant",),
)  # fmt: skip
TOKEN_RATE = Metric(
    "headrace_gateway_tokens_per_second", Kind.GAUGE, "tokens/s",
    "Tokens of answered requests over the last minute, by kind: input (cached ones too) and output.", ("kind",),
)  # fmt: skip
COST_PER_1000 = Metric(
    "headrace_gateway_cost_per_1000_tokens", Kind.GAUGE, "money",
    "What 1,000 tokens, of prompts and answers, cost over the last hour.",
)  # fmt: skip
SAVED_TOKENS = Metric(
    "headrace_gateway_cache_saved_tokens_total", Kind.COUNTER, "tokens",
    "Tokens that need not be computed, by cache: response (prompts and answers told again), prefix (of prompts).",
    ("cache",),
)  # fmt: skip
SAVED_COST = Metric(
    "headrace_gateway_cache_saved_cost_total", Kind.COUNTER, "money",
    "What those tokens would have cost more: at the cheapest replica of the model, for the response cache; at the price "
    "of uncached input, for prefix caches.",
    ("cache",),
)  # fmt: skip

# Objectives ------------------------------------------------------------------------------------
SLO_EVENTS = Metric(
    "headrace_slo_events_total", Kind.COUNTER, "events",
    "Requests (of the measure itl: pauses between tokens) that an objective counts, by result: good or bad.",
    ("slo", "result"),
)  # fmt: skip
SLO_TARGET = Metric(
    "headrace_slo_target_ratio", Kind.GAUGE, "ratio", "Share of them that must be good.", ("slo",),
)  # fmt: skip
SLO_ATTAINMENT = Metric(
    "headrace_slo_attainment_ratio", Kind.GAUGE, "ratio",
    "Share of them that was good over the objective's window, as far as this gateway has seen it.", ("slo",),
)  # fmt: skip
SLO_BUDGET = Metric(
    "headrace_slo_error_budget_remaining_ratio", Kind.GAUGE, "ratio",
    "Share of the error budget that is left; below 0 it is overspent.", ("slo",),
)  # fmt: skip
SLO_BURN = Metric(
    "headrace_slo_burn_rate", Kind.GAUGE, "ratio",
    "Times as fast as would just use up the budget, by window of the rules.", ("slo", "window"),
)  # fmt: skip
ALERTS_FIRING = Metric(
    "headrace_alerts_firing", Kind.GAUGE, "boolean",
    "1 while an alert fires, by its objective and severity.", ("slo", "severity"),
)  # fmt: skip
ALERT_MESSAGES = Metric(
    "headrace_alert_messages_total", Kind.COUNTER, "messages",
    "Messages to webhooks by outcome: delivered, failed (every try), dropped (overtaken by a later one, or cut off by the end).",
    ("outcome",), server_wide=True,
)  # fmt: skip
