"""A gateway and a replica, told of by the tools that people use: an OTLP receiver, promtool, Prometheus."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.gateway_process import GatewayProcess
from tests.support.otlp_receiver import OtlpReceiver, attributes_of
from tests.support.patience import PATIENCE
from tests.support.ports import held_port
from tests.support.processes import ServeProcess, until
from tests.support.tiny_models import make_tiny_llama

from headrace.cli.main import main

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "headrace.rules.yaml"
TOKEN = "between machines"
SECRET_WORD = "xylophone"
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed",
)


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(scope="module")
def replica(
    receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    model = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    with ServeProcess(
        str(model), "--port", "0", "--threads", "1", "--trusted-peer-token", TOKEN,
        "--served-model-name", "tiny", "--otlp-endpoint", receiver.url,
    ) as running:  # fmt: skip
        yield running.wait_ready()


@pytest.fixture(scope="module")
def gateway(
    replica: ServeProcess, receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("fleet")
    file = directory / "fleet.yaml"
    file.write_text(
        f"""
gateway: {{port: 0, admin_keys: boss}}
health: {{probe_timeout: 60s}}
tracing: {{otlp_endpoint: '{receiver.url}'}}
alerts: {{file: '{directory / "slos.json"}'}}
slos:
  - {{name: quick, measure: ttft, threshold: 30s, window: 1h}}
  - {{name: up, measure: availability}}
replicas:
  - {{url: '{replica.url}', peer_token: '{TOKEN}', id: r0}}
"""
    )
    with GatewayProcess(file) as running:
        running.wait_ready()
        until(lambda: httpx.get(f"{running.url}/readyz").status_code == 200, "it is ready")
        yield running


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


def ask(url: str, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": f"a {SECRET_WORD}", "max_tokens": 8, "ignore_eos": True}
    headers = fields.pop("headers", {})
    answer = httpx.post(f"{url}/v1/completions", json={**body, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_request_through_gateway_and_replica_is_one_tree_of_spans(
    gateway: GatewayProcess, receiver: OtlpReceiver
) -> None:
    trace_id, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    ask(gateway.url, stream=True, headers={"traceparent": f"00-{trace_id}-{caller}-01"})

    def ours() -> list[tuple[str, object]]:
        return [s for s in receiver.spans if s[1].trace_id.hex() == trace_id]

    until(lambda: len(ours()) >= 11, "all spans have come")
    spans = {(service.removeprefix("headrace-"), span.name): span for service, span in ours()}
    assert sorted(spans) == [
        ("gateway", "queue"),
        ("gateway", "receive"),
        ("gateway", "route"),
        ("gateway", "text_completion tiny"),
        ("server", "decode"),
        ("server", "prefill"),
        ("server", "queue"),
        ("server", "receive"),
        ("server", "stream"),
        ("server", "text_completion tiny"),
        ("server", "tokenize"),
    ]
    gateway_spans = [span for service, span in ours() if service == "headrace-gateway"]
    root = next(s for s in gateway_spans if s.kind == 2)
    attempt = next(s for s in gateway_spans if s.kind == 3)
    server = spans["server", "text_completion tiny"]
    assert root.parent_span_id.hex() == caller
    assert attempt.parent_span_id == root.span_id
    assert server.parent_span_id == attempt.span_id
    for (service, name), span in spans.items():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if service == "server" and span is not server:
            assert span.parent_span_id == server.span_id, name
            # The engine is another process; its clock is the same.
            assert server.start_time_unix_nano <= span.start_time_unix_nano
    told = attributes_of(root)
    assert told["gen_ai.usage.output_tokens"] == 8
    assert told["headrace.tenant"] == "anonymous"
    assert told["http.response.status_code"] == 200
    assert attributes_of(attempt)["headrace.replica"] == "r0"
    assert attributes_of(spans["gateway", "route"])["headrace.routing.policy"]
    own = attributes_of(server)
    assert own["gen_ai.operation.name"] == "text_completion"
    assert own["gen_ai.usage.input_tokens"] > 0
    assert own["gen_ai.request.max_tokens"] == 8
    assert not any(SECRET_WORD.encode() in body for body in receiver.bodies)


def test_a_request_whose_trace_is_not_sampled_sends_nothing(
    gateway: GatewayProcess, receiver: OtlpReceiver
) -> None:
    unsampled, sampled = "1" * 32, "2" * 32
    ask(gateway.url, headers={"traceparent": f"00-{unsampled}-{'3' * 16}-00"})
    ask(gateway.url, headers={"traceparent": f"00-{sampled}-{'3' * 16}-01"})
    until(
        lambda: sum(s.trace_id.hex() == sampled for _, s in receiver.spans) >= 10,
        "the other one has come",
    )
    assert not any(s.trace_id.hex() == unsampled for _, s in receiver.spans)
    page = httpx.get(f"{gateway.url}/metrics").text
    assert 'headrace_trace_spans_total{outcome="exported"}' in page


def test_the_last_steps_are_a_trace_for_perfetto(replica: ServeProcess, tmp_path: Path) -> None:
    ask(replica.url, max_tokens=6)
    out = tmp_path / "steps.json"
    until(lambda: len(httpx.get(f"{replica.url}/timeline").json()["traceEvents"]) > 20, "steps")
    assert main(["timeline", replica.url, "--out", str(out), "--steps", "500"]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"prefill", "decode", "model", "sample", "inputs", "queue"} <= names
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert SECRET_WORD not in out.read_text()
    assert httpx.get(f"{replica.url}/timeline?steps=0").status_code == 400


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_any_page(
    gateway: GatewayProcess, replica: ServeProcess
) -> None:
    ask(gateway.url, stream=True)
    for url in (f"{gateway.url}/metrics", f"{replica.url}/metrics", f"{replica.url}/metrics/genai"):
        page = httpx.get(url).text
        assert page.count("# TYPE") > 2
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=page,
            text=True,
            capture_output=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), url


@needs_prometheus
def test_prometheus_scrapes_both_and_answers(
    gateway: GatewayProcess, replica: ServeProcess, tmp_path: Path, port: int
) -> None:
    address = f"127.0.0.1:{port}"
    ask(gateway.url, stream=True)
    targets = [url.removeprefix("http://") for url in (gateway.url, replica.url)]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 250ms, evaluation_interval: 250ms}\n"
        f"rule_files: ['{RULES}']\n"
        f"scrape_configs: [{{job_name: headrace, static_configs: [{{targets: {targets}}}]}}]\n"
    )
    log = tmp_path / "log"
    with log.open("w") as opened:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address={address}", "--log.level=warn"],
            stdout=opened, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:

        def asked(query: str) -> list[dict[str, object]]:
            try:
                answer = httpx.get(f"http://{address}/api/v1/query", params={"query": query})
            except httpx.TransportError:
                assert process.poll() is None, log.read_text()
                return []
            if answer.status_code != 200:  # it is starting
                return []
            result = answer.json().get("data", {}).get("result", [])
            return list(result)

        until(lambda: len(asked("up == 1")) == 2, "both targets are up")
        until(lambda: asked("headrace_gateway_requests_total > 0"), "the gateway is told of")
        until(lambda: asked('headrace_slo_events_total{slo="quick",result="good"} > 0'), "its SLOs")
        until(lambda: asked("headrace_generation_tokens_total > 0"), "the replica is told of")
        until(lambda: asked("headrace:tokens:rate5m"), "its rules are evaluated")
        groups = httpx.get(f"http://{address}/api/v1/rules").json()["data"]["groups"]
        assert [rule for group in groups for rule in group["rules"] if rule.get("lastError")] == []
        until(
            lambda: len(asked("headrace_process_resident_memory_bytes > 1e6")) == 3,
            "gateway, server and engine",
        )
    finally:
        process.terminate()
        process.wait(PATIENCE)
