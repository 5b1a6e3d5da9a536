"""The page that Prometheus scrapes: well-formed, stable names, sums that add up."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_clock import FakeClock

from headrace.core.events import FinishReason, RequestTimes, TokenEvent
from headrace.core.model_info import ModelInfo
from headrace.core.stats import EngineStats, ReplicaRole, ReplicaState, StepStats
from headrace.observe import catalogue
from headrace.observe.load_report import load_report
from headrace.observe.metric import Kind
from headrace.observe.metrics import Metrics
from headrace.observe.prometheus import expose
from headrace.observe.rates import Rate
from headrace.observe.recorder import EngineRecorder, RequestRecorder

INFO = ModelInfo(
    names=("m",),
    source="m",
    path="m",
    family="llama",
    digest="00",
    vocab_size=10,
    max_context=100,
    block_size=16,
    num_blocks=50,
    max_num_seqs=4,
)

#: Names that dashboards and routers rely on: a change here breaks somebody.
VLLM_NAMES = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
    "vllm:cache_config_info",
]


def recorded():
    """Metrics with something in every family."""
    metrics, clock = Metrics(), FakeClock()
    engine = EngineRecorder(metrics, "m", clock)
    engine.became_ready(INFO, {"weights": 0.1})
    requests = RequestRecorder(metrics, "m", clock)
    sequence = requests.sequence(clock.monotonic(), 10)
    clock.advance(0.5)
    times = RequestTimes(
        clock.monotonic() - 0.5, clock.monotonic() - 0.4, clock.monotonic() - 0.3, clock.monotonic()
    )
    sequence.observe(TokenEvent("r", 0, (1,), times=times))
    clock.advance(0.2)
    sequence.observe(TokenEvent("r", 0, (1, 1)))
    sequence.finish(FinishReason.LENGTH)
    stats = EngineStats(
        steps=3, num_running=1, num_waiting=2, blocks_total=50, blocks_free=20, blocks_cached=10,
        blocks_held=20, prompt_tokens=100, cached_tokens=40, generated_tokens=9,
    )  # fmt: skip
    step = StepStats(
        step_id=1,
        started=0.0,
        seconds=0.02,
        num_prefill_tokens=5,
        num_decode_tokens=1,
        num_sequences=2,
    )
    engine.record(stats, [step])
    metrics.add(catalogue.REQUESTS_REJECTED, ("queue",))
    metrics.add(catalogue.HTTP_REQUESTS, ("/v1/models", "GET", "200"))
    metrics.add(catalogue.KEY_REQUESTS, ("alice",))
    metrics.histogram(catalogue.HTTP_DURATION, ("/v1/models",)).observe(0.01)
    metrics.set(catalogue.BUILD, ("1",), 1.0)
    metrics.set(catalogue.PROCESS_START, (), 1.0)
    metrics.set(catalogue.READY, (), 1.0)
    record_gateway(metrics)
    return metrics, engine, clock


def record_gateway(metrics):
    """A value in every family that a server by itself has nothing for."""
    for metric in catalogue.catalogue():
        if metrics.is_empty(metric):
            labels = metric.labels if metric.server_wide else ("model", *metric.labels)
            if metric.kind is Kind.HISTOGRAM:
                metrics.histogram(metric, labels).observe(1.0)
            else:
                metrics.set(metric, labels, 1.0)


def families(text):
    found = list(text_string_to_metric_families(text))
    assert len({f.name for f in found}) == len(found)
    return found


def test_every_metric_of_the_catalogue_is_on_the_page():
    metrics, _, _ = recorded()
    text = expose(metrics)
    for metric in catalogue.catalogue():
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
        assert f"# HELP {metric.name} " in text
    for family in families(text):
        for sample in family.samples:
            assert sample.value == sample.value


def test_vllms_names_are_all_there_with_its_labels():
    metrics, _, _ = recorded()
    text = expose(metrics, headrace=False, vllm=True)
    assert "headrace_" not in text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == set(VLLM_NAMES)
    assert 'vllm:num_requests_running{model_name="m",engine="0"} 1' in text
    assert (
        'vllm:request_success_total{model_name="m",finished_reason="length",engine="0"} 1' in text
    )
    assert 'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.4' in text
    families(text)


def test_ends_that_vllm_calls_abort_are_added_up():
    metrics = Metrics()
    for reason in ("timeout", "cancelled", "cancelled"):
        metrics.add(catalogue.REQUESTS_FINISHED, ("m", reason))
    text = expose(metrics, headrace=False, vllm=True)
    assert 'finished_reason="abort",engine="0"} 3' in text
    families(text)


def test_histograms_are_cumulative_and_end_with_infinity():
    metrics = Metrics()
    histogram = metrics.histogram(catalogue.TTFT, ("m",))
    for value in (0.0005, 0.001, 0.3, 1e9):
        histogram.observe(value)
    [family] = families(expose(metrics))
    buckets = [s for s in family.samples if s.name.endswith("_bucket")]
    assert [s.value for s in buckets] == sorted(s.value for s in buckets)
    assert buckets[0].value == 2  # a bound belongs to its bucket
    assert (buckets[-1].labels["le"], buckets[-1].value) == ("+Inf", 4)
    assert [s.value for s in family.samples if s.name.endswith("_count")] == [4]


@given(st.text(max_size=20))
def test_any_label_value_survives(name):
    metrics = Metrics()
    metrics.set(catalogue.REQUESTS_RUNNING, (name,), 1.0)
    # The exposition format has one line break; other control characters are ordinary.
    [family] = text_string_to_metric_families(expose(metrics))
    assert family.samples[0].labels["model"] == name or "\n" not in name


def test_promtool_finds_nothing():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    metrics, _, _ = recorded()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=expose(metrics), text=True, capture_output=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_tokens_that_come_together_share_their_interval():
    metrics, _, _ = recorded()
    itl = metrics.histogram(catalogue.ITL, ("m",))
    assert itl.count == 2
    assert itl.total == pytest.approx(0.2)
    assert metrics.histogram(catalogue.TTFT, ("m",)).total == pytest.approx(0.5)
    assert metrics.histogram(catalogue.TPOT, ("m",)).total == pytest.approx(0.1)


@given(st.lists(st.sampled_from(["start", "stop", "cancelled", "error"]), max_size=40))
def test_started_is_finished_plus_open(steps):
    metrics, clock = Metrics(), FakeClock()
    requests = RequestRecorder(metrics, "m", clock)
    running = []
    for step in steps:
        if step == "start":
            running.append(requests.sequence(clock.monotonic(), 3))
        elif running:
            sequence = running.pop()
            sequence.finish(step)
            sequence.finish("error")  # a second end does not count
        started = metrics.total(catalogue.REQUESTS_STARTED)
        assert started == metrics.total(catalogue.REQUESTS_FINISHED) + len(running)


def test_totals_go_on_after_a_restart():
    metrics, engine, _ = recorded()
    engine.restarted()
    assert metrics.value(catalogue.REQUESTS_RUNNING, ("m",)) == 0
    engine.record(EngineStats(steps=1, generated_tokens=4), [])
    assert metrics.value(catalogue.GENERATION_TOKENS, ("m",)) == 13
    assert metrics.value(catalogue.ENGINE_RESTARTS, ("m",)) == 1


def test_the_load_report_has_rates_of_the_last_seconds():
    _, engine, clock = recorded()
    for step in range(1, 21):
        clock.advance(0.5)
        stats = EngineStats(
            steps=3 + step, blocks_total=50, blocks_held=25, prompt_tokens=100 + 10 * step,
            cached_tokens=40 + 5 * step, generated_tokens=9 + 6 * step, waiting_tokens=7,
            running_tokens=5,
        )  # fmt: skip
        engine.record(stats, [])
    facts = {"name": "m", "state": ReplicaState.READY, "info": INFO, "idle": 0.0}
    whole = {"state": ReplicaState.READY, "role": ReplicaRole.DECODE, "models": ("m",)}
    whole |= {"uptime": 1.0, "version": "1"}
    report = load_report([engine.load(**facts)], **whole)
    assert (report.state, report.role) == (ReplicaState.READY, ReplicaRole.DECODE)
    assert report.decode_tokens_per_second == pytest.approx(12.0, rel=0.05)
    assert report.prefix_hit_rate == pytest.approx(0.5)
    assert (report.kv_usage, report.outstanding_tokens, report.models) == (0.5, 12, ("m",))
    clock.advance(100)
    report = load_report([engine.load(**facts)], **whole)
    assert (report.decode_tokens_per_second, report.prefix_hit_rate) == (0.0, 0.0)


def test_a_rate_forgets_what_left_its_window():
    rate = Rate(10.0)
    for second in range(30):
        rate.record(float(second), 100.0 * second)
    assert rate.per_second(29.0) == pytest.approx(100.0, rel=0.05)
    assert rate.per_second(33.0) == pytest.approx(60.0, rel=0.1)
    assert rate.per_second(60.0) == 0.0
    rate.record(61.0, 5.0)
    assert rate.growth(61.0) == 0.0


def test_the_documentation_lists_every_metric():
    table = catalogue.markdown()
    assert all(f"`{metric.name}`" in table for metric in catalogue.catalogue())
