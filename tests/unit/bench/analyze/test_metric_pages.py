"""Metrics pages of three kinds of server, read into the same observations."""

import pytest

from headrace.bench.analyze.metrics import kind_of, model_of, read_page, traffic_of
from headrace.bench.analyze.values import Model, ServerKind, Traffic
from headrace.observe import catalogue, gateway_metrics
from headrace.observe.metrics import Metrics
from headrace.observe.prometheus import expose


def server_page(requests: int, *, vllm: bool) -> str:
    metrics = Metrics()
    own = ("m",)
    for metric, seconds in (
        (catalogue.QUEUE_TIME, 0.5), (catalogue.TTFT, 0.8), (catalogue.PREFILL_TIME, 0.25),
        (catalogue.DECODE_TIME, 2.0), (catalogue.E2E, 3.0),
    ):  # fmt: skip
        metrics.histogram(metric, own).observe(seconds, requests)
    metrics.set(catalogue.REQUESTS_RUNNING, own, 4)
    metrics.set(catalogue.REQUESTS_WAITING, own, 2)
    metrics.set(catalogue.KV_USAGE, own, 0.75)
    metrics.set(catalogue.MAX_SEQUENCES, own, 8)
    metrics.add(catalogue.PROMPT_TOKENS, own, 100 * requests)
    metrics.add(catalogue.CACHED_TOKENS, own, 40 * requests)
    metrics.add(catalogue.GENERATION_TOKENS, own, 20 * requests)
    metrics.add(catalogue.PREEMPTIONS, own, requests // 2)
    metrics.set(catalogue.MODEL_INFO, (*own, "bf16", "avx512", "2"), 1)
    metrics.set(catalogue.MODEL_WEIGHT_BYTES, own, 1e8)
    metrics.set(catalogue.MODEL_PARAMETERS, own, 2e8)
    metrics.set(catalogue.KV_BYTES_PER_TOKEN, own, 1000)
    return expose(metrics, headrace=not vllm, vllm=vllm)


@pytest.mark.parametrize("vllm", [False, True])
def test_a_server_under_our_names_and_vllms(vllm: bool) -> None:
    before, after = server_page(10, vllm=vllm), server_page(30, vllm=vllm)
    assert kind_of(after) is (ServerKind.VLLM if vllm else ServerKind.HEADRACE)
    traffic = traffic_of(read_page(before), read_page(after), 10.0)
    assert traffic == Traffic(
        seconds=10.0, requests=20, running=4, waiting=2, max_running=None if vllm else 8, kv_usage=0.75,
        queue=0.5, ttft=0.8, prefill=0.25, decode=2.0, prompt_tokens=100, output_tokens=20, hit_share=0.4,
        preemptions=10,
    )  # fmt: skip
    told = Model(weight_bytes=1e8, parameters=2e8, kv_bytes=1000, kv_format="bf16")
    assert model_of(after) == (Model() if vllm else told)


def gateway_page(requests: int) -> str:
    metrics = Metrics()
    for tenant in ("a", "b"):
        own = ("m", tenant, "standard")
        for metric, seconds in (
            (gateway_metrics.REQUEST_QUEUE_TIME, 0.5), (gateway_metrics.REQUEST_TTFT, 0.8),
            (gateway_metrics.REQUEST_TIME, 3.0), (gateway_metrics.REQUEST_TPOT, 0.1),
        ):  # fmt: skip
            metrics.histogram(metric, own).observe(seconds, requests)
        for kind, tokens in (("input", 60), ("cached", 40), ("output", 21)):
            metrics.add(gateway_metrics.REQUEST_TOKENS, (*own, kind), tokens * requests)
    for replica, standing in (("x", 1.0), ("y", 1.0), ("z", 0.0)):
        metrics.set(gateway_metrics.REPLICA_STANDING, (replica, "ready"), standing)
        metrics.set(gateway_metrics.REPLICA_STANDING, (replica, "unready"), 1.0 - standing)
    metrics.set(catalogue.FLOW_RUNNING, ("m",), 6)
    return expose(metrics)


def test_a_gateway() -> None:
    traffic = traffic_of(read_page(gateway_page(0)), read_page(gateway_page(10)), 5.0)
    assert traffic == Traffic(
        seconds=5.0, requests=20, running=6, queue=0.5, ttft=0.8, prompt_tokens=100, output_tokens=21,
        decode=pytest.approx(2.0), hit_share=0.4, replicas=2,
    )  # fmt: skip
    assert kind_of(gateway_page(1)) is ServerKind.GATEWAY


def test_a_server_that_started_again_has_told_nothing() -> None:
    traffic = traffic_of(
        read_page(server_page(30, vllm=False)), read_page(server_page(5, vllm=False)), 10.0
    )
    assert traffic.requests == 0
    assert (traffic.queue, traffic.prompt_tokens, traffic.preemptions) == (None, None, None)


@pytest.mark.parametrize(
    "page", ["", "<html>", "up 1\n", "headrace_x NaN\n", "vllm:num_requests_running oops"]
)
def test_pages_that_tell_nothing(page: str) -> None:
    assert traffic_of(read_page(page), read_page(page), 1.0) == Traffic(seconds=1.0)
    assert model_of(page) == Model()
