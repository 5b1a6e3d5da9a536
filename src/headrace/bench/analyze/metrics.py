"""Numbers of a metrics page by our own names, and what two pages say of the time between them. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from headrace.bench.analyze.values import Model, ServerKind, Traffic
from headrace.fleet.backends.prometheus import Aliases, gauges

_GATEWAY: Final = "headrace_gateway_"


def _histogram(name: str, *families: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{name}_sum": tuple(f"{family}_sum" for family in families),
        f"{name}_count": tuple(f"{family}_count" for family in families),
    }


#: Our name → families, a server's own first. Of a gateway only those that stand for its clients.
_SERVER: Final[Aliases] = {
    **_histogram("queue", "headrace_request_queue_seconds", "vllm:request_queue_time_seconds"),
    **_histogram(
        "ttft", "headrace_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"
    ),
    **_histogram(
        "prefill", "headrace_request_prefill_seconds", "vllm:request_prefill_time_seconds"
    ),
    **_histogram("decode", "headrace_request_decode_seconds", "vllm:request_decode_time_seconds"),
    **_histogram("e2e", "headrace_request_duration_seconds", "vllm:e2e_request_latency_seconds"),
    "running": ("headrace_requests_running", "vllm:num_requests_running"),
    "waiting": ("headrace_requests_waiting", "vllm:num_requests_waiting"),
    "max_running": ("headrace_max_running_sequences",),
    "kv_usage": (
        "headrace_kv_usage_ratio",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ),
    "prompt": ("headrace_prompt_tokens_total", "vllm:prompt_tokens_total"),
    "cached": (
        "headrace_prefix_cache_hit_tokens_total",
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
    ),
    "output": ("headrace_generation_tokens_total", "vllm:generation_tokens_total"),
    "preemptions": ("headrace_preemptions_total", "vllm:num_preemptions_total"),
    "weight_bytes": ("headrace_model_weight_bytes",),
    "parameters": ("headrace_model_parameters",),
    "kv_bytes": ("headrace_kv_bytes_per_token",),
}
_OF_GATEWAY: Final[Aliases] = {
    **_histogram("queue", "headrace_gateway_request_queue_seconds"),
    **_histogram("ttft", "headrace_gateway_time_to_first_token_seconds"),
    **_histogram("e2e", "headrace_gateway_request_duration_seconds"),
    **_histogram("tpot", "headrace_gateway_request_time_per_output_token_seconds"),
    "running": ("headrace_gateway_running_requests",),
    "waiting": ("headrace_gateway_queue_requests",),
}
_TOKENS: Final = "headrace_gateway_tokens_total"
_STANDING: Final = "headrace_gateway_replica_standing"
_FORMAT: Final = re.compile(r'^headrace_model_info\{[^}]*kv_format="([^"]*)"', re.MULTILINE)


def kind_of(page: str) -> ServerKind:
    """Whose page it is."""
    if _GATEWAY in page:
        return ServerKind.GATEWAY
    if "headrace_" in page:
        return ServerKind.HEADRACE
    return ServerKind.VLLM if "vllm:" in page else ServerKind.OTHER


def read_page(page: str) -> dict[str, float]:
    """Numbers by our names; series of several models are added up."""
    if kind_of(page) is not ServerKind.GATEWAY:
        return gauges(page, _SERVER, largest=frozenset({"kv_usage"}))
    found = gauges(page, _OF_GATEWAY)
    for name in ("input", "cached", "output"):
        found |= gauges(_labelled(page, _TOKENS, f'kind="{name}"'), {name: (_TOKENS,)})
    if "input" in found:  # those that no cache knew
        found["prompt"] = found.pop("input") + found.get("cached", 0.0)
    ready = gauges(_labelled(page, _STANDING, 'standing="ready"'), {"replicas": (_STANDING,)})
    return found | ready


def traffic_of(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> Traffic:
    """What came between two pages. A server that started again meanwhile has told nothing."""

    def growth(name: str) -> float | None:
        if name not in after:
            return None
        grown = after[name] - before.get(name, 0.0)
        return grown if grown >= 0 else None

    def mean(name: str) -> float | None:
        count, total = growth(f"{name}_count"), growth(f"{name}_sum")
        return total / count if count and total is not None else None

    requests = growth("e2e_count") or 0.0
    prompt, cached, output = growth("prompt"), growth("cached"), growth("output")
    each_output = output / requests if output is not None and requests else None
    decode, tpot = mean("decode"), mean("tpot")
    if decode is None and tpot is not None and each_output is not None:
        decode = tpot * max(0.0, each_output - 1.0)
    return Traffic(
        seconds=seconds,
        requests=requests,
        running=_between(before, after, "running"),
        waiting=_between(before, after, "waiting"),
        max_running=after.get("max_running"),
        kv_usage=_between(before, after, "kv_usage"),
        queue=mean("queue"),
        ttft=mean("ttft"),
        prefill=mean("prefill"),
        decode=decode,
        prompt_tokens=prompt / requests if prompt is not None and requests else None,
        output_tokens=each_output,
        hit_share=min(1.0, cached / prompt) if cached is not None and prompt else None,
        preemptions=growth("preemptions"),
        replicas=after.get("replicas"),
    )


def model_of(page: str) -> Model:
    """What the page tells of the model."""
    found = read_page(page)
    kv_format = _FORMAT.search(page)
    return Model(
        weight_bytes=found.get("weight_bytes") or None,
        parameters=found.get("parameters") or None,
        kv_bytes=found.get("kv_bytes") or None,
        kv_format=kv_format[1] if kv_format else "",
    )


def _between(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    told = [page[name] for page in (before, after) if name in page]
    return sum(told) / len(told) if told else None


def _labelled(page: str, family: str, label: str) -> str:
    lines = (line for line in page.splitlines() if line.startswith(family) and label in line)
    return "\n".join(lines)
