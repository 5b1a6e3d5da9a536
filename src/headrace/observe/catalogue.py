"""Every metric there is: one table. Exposition, docs and the contract test read it.

`vllm` lists the names under which vLLM (and the routers and dashboards made for it) knows the same
number; they are served on `/metrics/vllm`. `genai` is the name in OpenTelemetry's conventions, on `/metrics/genai`.
"""

from collections.abc import Iterable

from headrace.observe import (
    autoscaler_metrics,
    cache_metrics,
    gateway_metrics,
    model_metrics,
    system_metrics,
)
from headrace.observe.metric import (
    DURATION,
    INTERVAL,
    LATENCY,
    STEP_TOKENS,
    TOKENS,
    Kind,
    Metric,
)

# Requests --------------------------------------------------------------------------------------
REQUESTS_STARTED = Metric(
    "headrace_requests_started_total", Kind.COUNTER, "sequences",
    "Sequences handed to the engine (a request with n = 4 is four).",
)  # fmt: skip
REQUESTS_FINISHED = Metric(
    "headrace_requests_finished_total", Kind.COUNTER, "sequences",
    "Sequences that ended, by reason: stop, length, timeout, shutdown, cancelled, error.",
    ("reason",), vllm=("vllm:request_success_total",),
)  # fmt: skip
REQUESTS_REJECTED = Metric(
    "headrace_requests_rejected_total", Kind.COUNTER, "requests",
    "Requests that admission turned away, by reason: queue, tokens, bodies, connections, closed "
    "(loading or draining).",
    ("reason",), server_wide=True,
)  # fmt: skip
REQUESTS_RUNNING = Metric(
    "headrace_requests_running", Kind.GAUGE, "sequences", "Sequences that take part in steps.",
    vllm=("vllm:num_requests_running",),
)  # fmt: skip
REQUESTS_WAITING = Metric(
    "headrace_requests_waiting", Kind.GAUGE, "sequences", "Sequences that wait for their first step.",
    vllm=("vllm:num_requests_waiting",),
)  # fmt: skip
QUEUE_TOKENS = Metric(
    "headrace_queue_tokens", Kind.GAUGE, "tokens", "Prompt tokens that wait and are not computed yet.",
)  # fmt: skip
QUEUE_OLDEST = Metric(
    "headrace_queue_oldest_age_seconds", Kind.GAUGE, "seconds",
    "How long the longest waiting sequence has waited.",
)  # fmt: skip
TTFT = Metric(
    "headrace_time_to_first_token_seconds", Kind.HISTOGRAM, "seconds",
    "From the arrival of a request to its first token, as the HTTP process sees it.",
    buckets=LATENCY, vllm=("vllm:time_to_first_token_seconds",),
    genai="gen_ai.server.time_to_first_token",
)  # fmt: skip
ITL = Metric(
    "headrace_inter_token_latency_seconds", Kind.HISTOGRAM, "seconds",
    "Between two tokens of one sequence, as the HTTP process sees it.",
    buckets=INTERVAL,
    vllm=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)  # fmt: skip
TPOT = Metric(
    "headrace_request_time_per_output_token_seconds", Kind.HISTOGRAM, "seconds",
    "Mean time between the tokens of one finished sequence.",
    buckets=INTERVAL, vllm=("vllm:request_time_per_output_token_seconds",),
    genai="gen_ai.server.time_per_output_token",
)  # fmt: skip
E2E = Metric(
    "headrace_request_duration_seconds", Kind.HISTOGRAM, "seconds",
    "From arrival to the last token of a sequence.",
    buckets=DURATION, vllm=("vllm:e2e_request_latency_seconds",),
    genai="gen_ai.server.request.duration",
)  # fmt: skip
QUEUE_TIME = Metric(
    "headrace_request_queue_seconds", Kind.HISTOGRAM, "seconds",
    "From entering the engine's queue to the first step.",
    buckets=DURATION, vllm=("vllm:request_queue_time_seconds",),
)  # fmt: skip
PREFILL_TIME = Metric(
    "headrace_request_prefill_seconds", Kind.HISTOGRAM, "seconds",
    "From the first step to the first token.",
    buckets=DURATION, vllm=("vllm:request_prefill_time_seconds",),
)  # fmt: skip
DECODE_TIME = Metric(
    "headrace_request_decode_seconds", Kind.HISTOGRAM, "seconds",
    "From the first token to the last.",
    buckets=DURATION, vllm=("vllm:request_decode_time_seconds",),
)  # fmt: skip
INFERENCE_TIME = Metric(
    "headrace_request_inference_seconds", Kind.HISTOGRAM, "seconds",
    "From the first step to the last token.",
    buckets=DURATION, vllm=("vllm:request_inference_time_seconds",),
)  # fmt: skip
REQUEST_PROMPT_TOKENS = Metric(
    "headrace_request_prompt_tokens", Kind.HISTOGRAM, "tokens", "Prompt tokens of a finished sequence.",
    buckets=TOKENS, vllm=("vllm:request_prompt_tokens",),
    genai="gen_ai.client.token.usage", genai_labels=(("gen_ai_token_type", "input"),),
)  # fmt: skip
REQUEST_GENERATION_TOKENS = Metric(
    "headrace_request_generation_tokens", Kind.HISTOGRAM, "tokens",
    "Output tokens of a finished sequence.",
    buckets=TOKENS, vllm=("vllm:request_generation_tokens",),
    genai="gen_ai.client.token.usage", genai_labels=(("gen_ai_token_type", "output"),),
)  # fmt: skip
LONGEST_SEQUENCE = Metric(
    "headrace_longest_sequence_tokens", Kind.GAUGE, "tokens",
    "Prompt and output of the longest sequence that has finished.",
)  # fmt: skip

# Engine ----------------------------------------------------------------------------------------
PROMPT_TOKENS = Metric(
    "headrace_prompt_tokens_total", Kind.COUNTER, "tokens",
    "Prompt tokens of admitted sequences, cached ones included.",
    vllm=("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total",
          "vllm:gpu_prefix_cache_queries_total"),
)  # fmt: skip
CACHED_TOKENS = Metric(
    "headrace_prefix_cache_hit_tokens_total", Kind.COUNTER, "tokens",
    "Prompt tokens that came from the prefix cache.",
    vllm=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
)  # fmt: skip
GENERATION_TOKENS = Metric(
    "headrace_generation_tokens_total", Kind.COUNTER, "tokens", "Output tokens made.",
    vllm=("vllm:generation_tokens_total",),
)  # fmt: skip
PREEMPTIONS = Metric(
    "headrace_preemptions_total", Kind.COUNTER, "sequences",
    "Sequences that lost their blocks to others and were computed again.",
    vllm=("vllm:num_preemptions_total",),
)  # fmt: skip
KV_BLOCKS = Metric(
    "headrace_kv_blocks", Kind.GAUGE, "blocks",
    "KV blocks by state: held by sequences, cached (free capacity that is still of use), free.",
    ("state",),
)  # fmt: skip
KV_USAGE = Metric(
    "headrace_kv_usage_ratio", Kind.GAUGE, "ratio", "Share of KV blocks that sequences hold.",
    vllm=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)  # fmt: skip
MAX_SEQUENCES = Metric(
    "headrace_max_running_sequences", Kind.GAUGE, "sequences", "Sequences that may take part in one step.",
)  # fmt: skip
STEPS = Metric("headrace_steps_total", Kind.COUNTER, "steps", "Steps finished.")
STEP_TIME = Metric(
    "headrace_step_seconds", Kind.HISTOGRAM, "seconds",
    "Duration of a step, by what it ran: prefill, decode or mixed.", ("kind",), buckets=INTERVAL,
)  # fmt: skip
STEP_SIZE = Metric(
    "headrace_step_tokens", Kind.HISTOGRAM, "tokens", "Tokens that a step ran, prefill and decode.",
    buckets=STEP_TOKENS, vllm=("vllm:iteration_tokens_total",),
)  # fmt: skip
STEP_TOKENS_RUN = Metric(
    "headrace_step_tokens_run_total", Kind.COUNTER, "tokens",
    "Tokens that steps ran, by kind: prefill or decode.", ("kind",),
)  # fmt: skip
STEP_SEQUENCES = Metric(
    "headrace_step_sequences_total", Kind.COUNTER, "sequences",
    "Sequences that steps ran, summed over steps.",
)  # fmt: skip
STEP_PHASE_TIME = Metric(
    "headrace_step_phase_seconds_total", Kind.COUNTER, "seconds",
    "Time inside steps, by phase: inputs, model, sample.", ("phase",),
)  # fmt: skip
INTEGRITY_FAILURES = Metric(
    "headrace_integrity_failures_total", Kind.COUNTER, "checks",
    "Checks in which the KV ledger did not add up; anything but 0 is a bug.",
)  # fmt: skip
ENGINE_RESTARTS = Metric(
    "headrace_engine_restarts_total", Kind.COUNTER, "restarts",
    "Times that the engine process was started again.",
)  # fmt: skip
READY = Metric(
    "headrace_ready", Kind.GAUGE, "boolean", "1 when `/readyz` says so.", server_wide=True,
)  # fmt: skip
START_PHASES = Metric(
    "headrace_start_phase_seconds", Kind.GAUGE, "seconds",
    "How long each phase of the start took; `ready` is the whole.", ("phase",),
)  # fmt: skip
CACHE_CONFIG = Metric(
    "headrace_kv_info", Kind.GAUGE, "info",
    "1; the labels say how the KV cache is laid out. `num_gpu_blocks` is all its blocks, wherever they are: "
    "the name is kept for dashboards made for vLLM.",
    ("block_size", "num_gpu_blocks"), vllm=("vllm:cache_config_info",),
)  # fmt: skip
MODEL_INFO = Metric(
    "headrace_model_info", Kind.GAUGE, "info",
    "1; the labels say how keys and values are kept, which instructions are used, and how many threads.",
    ("kv_format", "isa", "threads"),
)  # fmt: skip
MODEL_WEIGHT_BYTES = Metric(
    "headrace_model_weight_bytes", Kind.GAUGE, "bytes",
    "Weights as they are served: a token that is decoded alone reads nearly all of them.",
)  # fmt: skip
MODEL_STEP_BYTES = Metric(
    "headrace_model_step_bytes", Kind.GAUGE, "bytes",
    "Room for the activations of the largest step; only what steps have written takes memory.",
)  # fmt: skip
MODEL_PARAMETERS = Metric(
    "headrace_model_parameters", Kind.GAUGE, "parameters", "Elements of all weight matrices.",
)  # fmt: skip
KV_BYTES_PER_TOKEN = Metric(
    "headrace_kv_bytes_per_token", Kind.GAUGE, "bytes", "Keys and values of one token, in all layers.",
)  # fmt: skip

# Server ----------------------------------------------------------------------------------------
HTTP_REQUESTS = Metric(
    "headrace_http_requests_total", Kind.COUNTER, "requests",
    "Responses by route, method and status (499: the client left).",
    ("route", "method", "status"), server_wide=True,
)  # fmt: skip
HTTP_DURATION = Metric(
    "headrace_http_request_duration_seconds", Kind.HISTOGRAM, "seconds",
    "From the request's headers to the last byte of the response.",
    ("route",), buckets=DURATION, server_wide=True,
)  # fmt: skip
KEY_REQUESTS = Metric(
    "headrace_api_key_requests_total", Kind.COUNTER, "requests",
    "Requests by the name of the API key that they came with.", ("key",), server_wide=True,
)  # fmt: skip
GATEWAY_SHADOWS = Metric(
    "headrace_gateway_shadow_requests_total", Kind.COUNTER, "requests",
    "Copies of requests to another model, by outcome: answered, failed, left_out.",
    ("outcome",), server_wide=True,
)  # fmt: skip
PIPELINE_STEPS = Metric(
    "headrace_gateway_pipeline_steps_total", Kind.COUNTER, "steps",
    "Steps of pipelines, by outcome: ok, skipped or failed.",
    ("pipeline", "step", "outcome"), server_wide=True,
)  # fmt: skip
PIPELINE_TIME = Metric(
    "headrace_gateway_pipeline_step_seconds", Kind.HISTOGRAM, "seconds",
    "How long a step of a pipeline took.", ("pipeline", "step"), buckets=DURATION, server_wide=True,
)  # fmt: skip
TOOL_CALLS = Metric(
    "headrace_gateway_tool_calls_total", Kind.COUNTER, "calls",
    "Calls of tools by the gateway, by server or endpoint and outcome: ok or error.",
    ("source", "outcome"), server_wide=True,
)  # fmt: skip
TOOL_TIME = Metric(
    "headrace_gateway_tool_seconds", Kind.HISTOGRAM, "seconds",
    "How long a tool took.", ("source",), buckets=LATENCY, server_wide=True,
)  # fmt: skip
# Gateway: routing ------------------------------------------------------------------------------
PREFIX_BLOCKS = Metric(
    "headrace_gateway_prefix_blocks", Kind.GAUGE, "blocks",
    "Blocks of prompts that the prefix indices hold, of all replicas.", server_wide=True,
)  # fmt: skip
PREFIX_EVENTS_TRUSTED = Metric(
    "headrace_gateway_kv_events_trusted", Kind.GAUGE, "replicas",
    "1: the replica's KV events told what it was sent, and routing goes by them; 0: not shown yet, or they did not.",
    ("replica",), server_wide=True,
)  # fmt: skip
PREFIX_EVENTS_LOST = Metric(
    "headrace_gateway_kv_events_lost_total", Kind.COUNTER, "messages",
    "Messages with KV events that were lost and could not be had again; each makes the index forget the replica.",
    ("replica",), server_wide=True,
)  # fmt: skip
PREFIX_EVENTS_MALFORMED = Metric(
    "headrace_gateway_kv_events_malformed_total", Kind.COUNTER, "messages",
    "Messages at a replica's endpoint for KV events that are none.", ("replica",), server_wide=True,
)  # fmt: skip
# Gateway: flow control ------------------------------------------------------------------------
FLOW_WAITING = Metric(
    "headrace_gateway_queue_requests", Kind.GAUGE, "requests",
    "Requests that wait for a replica's room, by priority class.", ("priority",),
)  # fmt: skip
FLOW_WAITING_TOKENS = Metric(
    "headrace_gateway_queue_tokens", Kind.GAUGE, "tokens",
    "Tokens of the requests that wait, prompts and expected answers, by priority class.", ("priority",),
)  # fmt: skip
FLOW_WAITING_BYTES = Metric(
    "headrace_gateway_queue_bytes", Kind.GAUGE, "bytes",
    "Bodies of all requests that wait.", server_wide=True,
)  # fmt: skip
FLOW_RUNNING = Metric(
    "headrace_gateway_running_requests", Kind.GAUGE, "requests",
    "Requests that were let through to replicas and have not ended.",
)  # fmt: skip
FLOW_QUEUE_TIME = Metric(
    "headrace_gateway_queue_seconds", Kind.HISTOGRAM, "seconds",
    "From the arrival of a request to its turn, by priority class.", ("priority",), buckets=LATENCY,
)  # fmt: skip
FLOW_REFUSED = Metric(
    "headrace_gateway_queue_refused_total", Kind.COUNTER, "requests",
    "Requests that got no turn, by priority class and reason: full, shed (turned away early), evicted (for a "
    "higher class), timeout, no_replica, closed (the gateway stops), left (by the client).",
    ("priority", "reason"),
)  # fmt: skip
FLOW_SERVED = Metric(
    "headrace_gateway_tenant_tokens_total", Kind.COUNTER, "tokens",
    "Weighted tokens that count in a tenant's share of the replicas.", ("tenant",), server_wide=True,
)  # fmt: skip

# Gateway: accounts -----------------------------------------------------------------------------
ACCOUNT_REQUESTS = Metric(
    "headrace_gateway_key_requests_total", Kind.COUNTER, "requests",
    "Requests that ended, by the name of their key and status (the first 1000 names; others are `other`).",
    ("key", "status"),
)  # fmt: skip
ACCOUNT_TOKENS = Metric(
    "headrace_gateway_key_tokens_total", Kind.COUNTER, "tokens",
    "Tokens by the name of their key and kind: input (uncached), cached, output.", ("key", "kind"),
)  # fmt: skip
ACCOUNT_COST = Metric(
    "headrace_gateway_key_cost_total", Kind.COUNTER, "money",
    "What requests cost at the prices of their replicas, by the name of their key.", ("key",),
)  # fmt: skip
ACCOUNT_REFUSED = Metric(
    "headrace_gateway_key_refused_total", Kind.COUNTER, "requests",
    "Requests that a limit of their key or tenant turned away, by the name of the key and reason: requests, tokens, "
    "concurrency, budget, store (limits cannot be counted).", ("key", "reason"), server_wide=True,
)  # fmt: skip
ACCOUNT_HOLDS = Metric(
    "headrace_gateway_reservations", Kind.GAUGE, "requests",
    "Requests for which tokens, places or money are set aside.", server_wide=True,
)  # fmt: skip
ACCOUNT_LOST = Metric(
    "headrace_gateway_reservations_lost_total", Kind.COUNTER, "requests",
    "Requests of gateways that died, settled by another one or at the next start.", server_wide=True,
)  # fmt: skip
ACCOUNT_BACKLOG = Metric(
    "headrace_gateway_accounts_backlog", Kind.GAUGE, "statements",
    "Writes that wait for the disk or for Redis.", server_wide=True,
)  # fmt: skip
ACCOUNT_STORE_FAILURES = Metric(
    "headrace_gateway_accounts_store_failures_total", Kind.COUNTER, "failures",
    "Times that the store of limits could not be reached.", server_wide=True,
)  # fmt: skip
USAGE_DROPPED = Metric(
    "headrace_gateway_usage_dropped_total", Kind.COUNTER, "rows",
    "Rows of the ledger that were dropped because its buffer was full.", server_wide=True,
)  # fmt: skip

TRACE_SPANS = Metric(
    "headrace_trace_spans_total", Kind.COUNTER, "spans",
    "Spans by what became of them: exported, failed (the receiver did not take them), dropped (the queue was full).",
    ("outcome",), server_wide=True,
)  # fmt: skip
BUILD = Metric(
    "headrace_build_info", Kind.GAUGE, "info", "1; the label is the version.",
    ("version",), server_wide=True,
)  # fmt: skip
PROCESS_START = Metric(
    "headrace_start_time_seconds", Kind.GAUGE, "seconds",
    "When the HTTP process started, since the Unix epoch.", server_wide=True,
)  # fmt: skip


def catalogue() -> tuple[Metric, ...]:
    """All metrics, in the order of this file; then those of models, of gateways, of their caches and autoscalers."""
    tables = (
        globals(),
        vars(model_metrics),
        vars(gateway_metrics),
        vars(cache_metrics),
        vars(autoscaler_metrics),
        vars(system_metrics),
    )
    return tuple(v for table in tables for v in table.values() if isinstance(v, Metric))


def markdown(metrics: Iterable[Metric] | None = None) -> str:
    """The table for the documentation."""
    lines = [
        "| Name | Kind | Unit | Labels | vLLM, OpenTelemetry | Meaning |",
        "|---|---|---|---|---|---|",
    ]
    for metric in catalogue() if metrics is None else metrics:
        labels = metric.labels if metric.server_wide else ("model", *metric.labels)
        others = [*metric.vllm, *([metric.genai] if metric.genai else [])]
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {metric.unit} | {', '.join(labels)} | "
            f"{' '.join(f'`{name}`' for name in others)} | {metric.meaning} |"
        )
    return "\n".join(lines) + "\n"
