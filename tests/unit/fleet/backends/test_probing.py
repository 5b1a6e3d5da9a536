import json
from typing import Any

import pytest

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.secret import Secret
from headrace.fleet.backends.registry import backend_for
from headrace.fleet.backends.values import CHAT, Incoming, Load, ModelCard


def backend(dialect: str, url: str = "http://r:1/", **fields: Any) -> Any:
    return backend_for(ReplicaSpec(url=url, dialect=Dialect(dialect), **fields))


VLLM_TEXT = """# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b"} 2.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5 1700000000
"""


def test_vllm_adds_engines_up_and_takes_the_fullest_cache() -> None:
    assert backend("vllm").read_load(200, VLLM_TEXT.encode()) == Load(
        num_running=5, num_waiting=0, kv_usage=0.5
    )


def test_vllm_under_its_old_name() -> None:
    old = VLLM_TEXT.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert backend("vllm").read_load(200, old.encode()).kv_usage == 0.5
    both = VLLM_TEXT + 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n'
    assert backend("vllm").read_load(200, both.encode()).kv_usage == 0.5  # the new name counts


def test_absent_is_not_zero() -> None:
    text = VLLM_TEXT.replace("vllm:num_requests_waiting{", "vllm:renamed{")
    load = backend("vllm").read_load(200, text.encode())
    assert load.num_waiting is None
    assert load.missing == ("num_waiting",)
    assert backend("vllm").read_load(404, b"").missing == ("num_running", "num_waiting", "kv_usage")


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe", b"{}", b"vllm:num_requests_running NaN\n", b"[" * 5000]
)
@pytest.mark.parametrize(
    "dialect", ["headrace", "vllm", "sglang", "llamacpp", "tgi", "trtllm", "openai"]
)
def test_garbage_is_missing_and_never_raises(dialect: str, garbage: bytes) -> None:
    found = backend(dialect)
    assert found.read_load(200, garbage).num_running is None
    assert found.read_models(200, garbage) == ()
    found.read_health(503, garbage)


def test_sglang() -> None:
    text = (
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 7.0\n'
        'sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2\n'
        'sglang:token_usage{model_name="m",tp_rank="0"} 0.28\n'
    )
    wanted = Load(num_running=7, num_waiting=2, kv_usage=0.28)
    assert backend("sglang").read_load(200, text.encode()) == wanted
    assert backend("sglang").read_load(200, text.replace(":", "_").encode()) == wanted
    abort = backend("sglang").abort("r-1")
    assert (abort.path, json.loads(abort.body)) == ("/abort_request", {"rid": "r-1"})


def test_llamacpp_counts_slots() -> None:
    slots = [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]
    found = backend("llamacpp")
    assert found.read_load(200, json.dumps(slots).encode()) == Load(num_running=1, max_running=2)
    old = [{"id": 0, "state": 1}, {"id": 1, "state": 0}]
    assert found.read_load(200, json.dumps(old).encode()).num_running == 1
    assert found.read_load(501, b'{"error":{"code":501}}').missing == ("num_running", "max_running")
    loading = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    assert not found.read_health(503, loading).is_ready
    assert found.read_health(503, loading).reason == "Loading model"
    assert found.read_health(200, b'{"status":"ok"}').is_ready


def test_trtllm_reads_the_last_iteration() -> None:
    rounds = [
        {"iter": 1, "numActiveRequests": 9},
        {
            "iter": 2,
            "numActiveRequests": 4,
            "numQueuedRequests": 1,
            "maxNumActiveRequests": 32,
            "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 25, "freeNumBlocks": 75},
        },
    ]
    found = backend("trtllm")
    assert found.read_load(200, json.dumps(rounds).encode()) == Load(
        num_running=4, num_waiting=1, kv_usage=0.25, max_running=32
    )
    assert found.read_load(200, b"[]") == Load()


def test_tgi() -> None:
    text = b"# TYPE tgi_queue_size gauge\ntgi_queue_size 3\ntgi_batch_current_size 8\n"
    assert backend("tgi").read_load(200, text) == Load(num_running=8, num_waiting=3)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"status":"unready","reason":"the engine is loading","state":"loading"}', "the engine is loading"),
        (b'{"status":"unready","reason":null,"state":"parked"}', "parked"),
        (b'{"status":"unready"}', "unready"),
        (b'{"error":{"message":"Full."}}', "Full."),
        (b'{"reason":7,"state":[]}', "status 503"),
    ],
)  # fmt: skip
def test_headrace_says_why_it_is_not_ready(body: bytes, reason: str) -> None:
    assert backend("headrace").read_health(503, body).reason == reason


def test_headrace_load() -> None:
    said = {
        "state": "draining", "num_running": 2, "num_waiting": 1, "kv_usage": 0.5,
        "max_num_seqs": 8, "outstanding_tokens": 900, "a_new_field": {},
    }  # fmt: skip
    assert backend("headrace").read_load(200, json.dumps(said).encode()) == Load(
        num_running=2,
        num_waiting=1,
        kv_usage=0.5,
        max_running=8,
        outstanding_tokens=900,
        is_draining=True,
    )
    assert backend("headrace").read_load(200, b'{"num_running":true}').missing[0] == "num_running"


def test_models_with_their_context() -> None:
    body = {
        "data": [
            {"id": "a", "max_model_len": 4096},
            {"id": "lora", "parent": "a", "max_model_len": None},
            {"id": "b", "meta": {"n_ctx": 512}},
            {"id": 3},
            "nonsense",
        ]
    }
    assert backend("vllm").read_models(200, json.dumps(body).encode()) == (
        ModelCard(id="a", max_context=4096),
        ModelCard(id="lora", parent="a"),
        ModelCard(id="b", max_context=512),
    )
    assert backend("vllm").read_models(500, json.dumps(body).encode()) == ()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://r:1", "/v1/chat/completions"),
        ("http://r:1/v1", "/v1/chat/completions"),
        ("http://r:1/v1/", "/v1/chat/completions"),
        ("https://r/openai/v1", "/openai/v1/chat/completions"),
    ],
)
def test_the_address_may_hold_a_path(url: str, path: str) -> None:
    found = backend("openai", url, api_key=Secret("k"))
    sent = found.outgoing(Incoming(path=CHAT, body=b"{}"))
    assert (sent.path, sent.body, sent.method) == (path, b"{}", "POST")
    assert sent.headers == {"content-type": "application/json", "authorization": "Bearer k"}
    assert found.models_probe().path == path.replace("chat/completions", "models")
    assert found.health_probe() is None
    assert found.load_probe() is None


def test_a_peer_token_is_sent_to_headrace_alone() -> None:
    sent = backend("headrace", peer_token=Secret("p")).outgoing(Incoming(path=CHAT, body=b"{}"))
    assert sent.headers["x-headrace-peer"] == "p"
    other = backend("vllm", peer_token=Secret("p")).outgoing(Incoming(path=CHAT, body=b"{}"))
    assert "x-headrace-peer" not in other.headers


@pytest.mark.parametrize(
    ("dialect", "health", "load"),
    [
        ("headrace", "/readyz", "/load"),
        ("vllm", "/health", "/metrics"),
        ("sglang", "/health", "/metrics"),
        ("llamacpp", "/health", "/slots"),
        ("tgi", "/health", "/metrics"),
        ("trtllm", "/health", "/metrics"),
    ],
)
def test_probes(dialect: str, health: str, load: str) -> None:
    found = backend(dialect, "http://r:1/v1", api_key=Secret("k"))
    assert found.dialect == dialect
    probes = [found.health_probe(), found.load_probe(), found.models_probe()]
    assert [probe.path for probe in probes] == [health, load, "/v1/models"]
    assert {probe.method for probe in probes} == {"GET"}
    assert probes[0].headers["authorization"] == "Bearer k"
    assert found.abort("") is None
