"""Metrics of a gateway's caches of answers: a part of the catalogue."""

from headrace.observe.metric import INTERVAL, Kind, Metric

CACHE_REQUESTS = Metric(
    "headrace_cache_requests_total", Kind.COUNTER, "requests",
    "Requests by what the response cache did for them: hit, miss, shared (with an identical one in flight), "
    "semantic (a hit by meaning), bypass.",
    ("result",),
)  # fmt: skip
CACHE_STORES = Metric(
    "headrace_cache_stores_total", Kind.COUNTER, "answers",
    "Answers that were to be kept: kept, too_large, unfit (an error, or cut off), dropped (too many at once).",
    ("result",), server_wide=True,
)  # fmt: skip
CACHE_ENTRIES = Metric(
    "headrace_cache_entries", Kind.GAUGE, "answers", "Answers in the embedded cache.", server_wide=True,
)  # fmt: skip
CACHE_BYTES = Metric(
    "headrace_cache_bytes", Kind.GAUGE, "bytes", "Their size.", server_wide=True,
)  # fmt: skip
CACHE_ERRORS = Metric(
    "headrace_cache_errors_total", Kind.COUNTER, "operations",
    "Times that the cache's store failed or was too slow; each was a miss.", server_wide=True,
)  # fmt: skip
CACHE_LOOKUP_TIME = Metric(
    "headrace_cache_lookup_seconds", Kind.HISTOGRAM, "seconds",
    "Time to look an answer up and make it ready to send.", buckets=INTERVAL, server_wide=True,
)  # fmt: skip
CACHE_FLIGHTS = Metric(
    "headrace_cache_flights", Kind.GAUGE, "answers", "Answers in the making that others may join.",
    server_wide=True,
)  # fmt: skip
CACHE_FLIGHT_BYTES = Metric(
    "headrace_cache_flight_bytes", Kind.GAUGE, "bytes", "What is held of them.", server_wide=True,
)  # fmt: skip
SEMANTIC_LOOKUPS = Metric(
    "headrace_semantic_cache_lookups_total", Kind.COUNTER, "requests",
    "Questions that were looked for by meaning: hit, guarded (similar, and kept apart by a guard), none (nothing "
    "similar), failed (no vector).",
    ("result",), server_wide=True,
)  # fmt: skip
SEMANTIC_GUARDED = Metric(
    "headrace_semantic_cache_guarded_total", Kind.COUNTER, "questions",
    "Similar questions that were kept apart, by guard: numbers, units, quotes, names, symbols, code, negation, "
    "relations, scope, opposites, order, words.",
    ("guard",), server_wide=True,
)  # fmt: skip
SEMANTIC_SHADOW = Metric(
    "headrace_semantic_cache_shadow_total", Kind.COUNTER, "questions",
    "What shadow mode would have told, compared with the real answer: right or wrong.", ("verdict",),
)  # fmt: skip
SEMANTIC_SIMILARITY = Metric(
    "headrace_semantic_cache_shadow_similarity", Kind.HISTOGRAM, "cosine",
    "How similar those questions were, by verdict: where to put the threshold.", ("verdict",),
    buckets=(0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 1.0),
)  # fmt: skip
SEMANTIC_TIME = Metric(
    "headrace_semantic_cache_embedding_seconds", Kind.HISTOGRAM, "seconds",
    "Time to get the vector of a question.", buckets=INTERVAL, server_wide=True,
)  # fmt: skip
SEMANTIC_ENTRIES = Metric(
    "headrace_semantic_cache_entries", Kind.GAUGE, "questions", "Questions in the index.",
    server_wide=True,
)  # fmt: skip
