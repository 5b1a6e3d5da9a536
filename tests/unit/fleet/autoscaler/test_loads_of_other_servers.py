"""What vLLM, SGLang, llama.cpp and TGI tell, as the autoscaler takes it: what they leave out is unknown, never idle."""

import json
from collections.abc import Sequence

import pytest
from tests.support.fake_clock import FakeClock

from headrace.config.fleet.replicas import Dialect, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.scaling import Objectives
from headrace.core.stats import ReplicaState
from headrace.fleet.autoscaler.gather import Counts, QueueLook, Sums, gather
from headrace.fleet.autoscaler.sensors import _look
from headrace.fleet.autoscaler.values import Signals
from headrace.fleet.gateway.build import make_replica
from headrace.fleet.replica import Replica, Report

VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
SGLANG = """sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.25
"""
SLOTS = json.dumps([{"id": n, "is_processing": n < 3} for n in range(4)])
TGI = "tgi_batch_current_size 3\ntgi_queue_size 2\n"


def server(dialect: Dialect, status: int, text: str, **options: int) -> Replica:
    """A ready one that answered its probe so."""
    spec = ReplicaSpec(url="http://127.0.0.1:1", dialect=dialect, **options)
    made = make_replica(FleetConfig(), spec)
    load = made.backend.read_load(status, text.encode())
    made.report = Report(
        state=ReplicaState.READY,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        max_num_seqs=load.max_running,
        kv_usage=load.kv_usage,
        busy=load.busy,
    )
    return made


def seen(replicas: Sequence[Replica]) -> Signals:
    now = FakeClock().monotonic()
    looks = [_look(each) for each in replicas]
    return gather(now, looks, QueueLook(), Sums(now, 60.0, 0.1), Counts(), Objectives())


@pytest.mark.parametrize(
    ("dialect", "text", "running", "waiting", "slots", "kv"),
    [
        (Dialect.VLLM, VLLM, 3, 2, None, 0.25),
        (Dialect.SGLANG, SGLANG, 3, 2, None, 0.25),
        (Dialect.SGLANG, SGLANG + "sglang:max_running_requests 8\n", 5, 0, 8, 0.25),
        (Dialect.LLAMACPP, SLOTS, 3, 0, 4, None),
        (Dialect.TGI, TGI, 3, 2, None, None),
    ],
)
def test_what_they_tell_is_counted(
    dialect: Dialect, text: str, running: int, waiting: int, slots: int | None, kv: float | None
) -> None:
    signals = seen([server(dialect, 200, text)])
    assert (signals.num_ready, signals.num_reporting) == (1, 1)
    assert (signals.num_running, signals.num_waiting, signals.slots) == (running, waiting, slots)
    assert signals.kv_usage == kv
    assert signals.utilisation is None  # none of them tells how busy it is


@pytest.mark.parametrize(
    ("dialect", "status", "text"),
    [
        *((dialect, 404, "") for dialect in (Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMACPP)),
        (Dialect.VLLM, 200, ""),
        (Dialect.VLLM, 200, SGLANG),
        (Dialect.VLLM, 200, VLLM.replace(" 3.0", " NaN")),
        (Dialect.SGLANG, 200, "sglang:token_usage 0.0\n"),
        (Dialect.LLAMACPP, 200, "[]"),
        (Dialect.LLAMACPP, 200, '[{"id": 0}]'),
        (Dialect.LLAMACPP, 501, '{"error": {"message": "--slots is off"}}'),
        (Dialect.TGI, 200, "tgi_queue_size 0\n"),
        (Dialect.OPENAI, 200, ""),
    ],
)
def test_what_they_leave_out_is_unknown_and_not_idle(
    dialect: Dialect, status: int, text: str
) -> None:
    told = server(Dialect.VLLM, 200, VLLM)
    silent = server(dialect, status, text)
    signals = seen([told, silent])
    assert (signals.num_ready, signals.num_reporting) == (2, 1)
    assert signals.num_running is None  # no sum of what only one tells
    assert seen([silent]).num_running is None


def test_their_operator_may_say_how_many_they_run_at_once() -> None:
    signals = seen([server(Dialect.VLLM, 200, VLLM, max_concurrency=16)])
    assert (signals.num_running, signals.slots) == (5, 16)
    # What a server tells itself counts more.
    assert seen([server(Dialect.LLAMACPP, 200, SLOTS, max_concurrency=2)]).slots == 4
