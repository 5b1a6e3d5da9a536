"""Plans against cases that were computed by hand."""

import json
from pathlib import Path

import pytest

from headrace.bench.plan.accelerators import ACCELERATORS
from headrace.bench.plan.answer import kv_costs, split_of
from headrace.bench.plan.model_facts import read_model
from headrace.bench.plan.options import PlanOptions
from headrace.bench.plan.run import plan
from headrace.cli.main import main
from headrace.core.errors import ConfigError

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
GEMMA_WINDOWS = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 640,
    "intermediate_size": 2048,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def llama(tmp_path: Path) -> str:
    path = tmp_path / "Meta-Llama-3-8B"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    return str(path)


def test_llama_3_8b_in_bf16_on_80_gb_at_8k(llama: str) -> None:
    found = plan(llama, PlanOptions(gpus="h100", context=8192, output_tokens=512, users=100))
    assert found.num_parameters == 8_030_261_248
    assert found.weight_bytes == 2 * 8_030_261_248
    # Keys and values, 32 layers, 8 KV heads of 128, 2 bytes: 128 KiB a token, 1 GiB a request.
    assert found.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert found.kv_bytes_per_sequence == 2**30
    # 72 GB less 16.06 GB of weights.
    assert found.kv_bytes == pytest.approx(0.9 * 80e9 - 16_060_522_496)
    assert found.max_sequences == 52
    # A step reads 15.01 GB of weights and, of B requests, 0.97 GiB of KV each, at 75 % of 3.35 TB/s.
    read = 2 * (8_030_261_248 - 128_256 * 4096)
    step = (read + found.batch * (8192 - 256) / 8192 * 2**30) / (0.75 * 3.35e12)
    # A prompt of 7,680 tokens: 2 operations a weight, and 4 x 32 heads x 128 for 3,840 positions in 32 layers.
    work = 7680 * (2 * (8_030_261_248 - 128_256 * 4096) + 4 * 32 * 128 * 3840 * 32)
    assert found.ttft == pytest.approx(work / (0.5 * 989e12), rel=1e-6)
    assert found.tpot == pytest.approx(step + found.batch / 512 * found.ttft, rel=1e-6)
    assert found.tokens_per_second == pytest.approx(found.batch / found.tpot)
    assert (found.batch, found.limited_by) == (52, "memory")
    assert (found.replicas, found.accelerators) == (2, 2)


def test_kv_types_and_grouped_heads_decide_what_a_token_takes(llama: str) -> None:
    spec = read_model(llama, "file").spec
    for kind, each in (
        ("f32", 262_144),
        ("int8", 2 * 32 * 8 * (128 + 4)),
        ("int16", 2 * 32 * 8 * 260),
    ):
        options = PlanOptions(kv_dtype=kind, context=8192)  # type: ignore[arg-type]
        assert kv_costs(spec, options) == (each, each * 8192)


def test_windows_keep_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA_WINDOWS))
    facts = read_model(str(path), "file")
    each, whole = kv_costs(facts.spec, PlanOptions(context=32768, kv_dtype="f16"))
    # 15 of 18 layers see 512 tokens (and keep a step and two blocks more), 3 see all.
    layer = 2 * 1 * 256 * 2
    assert each == 18 * layer
    assert whole == layer * (3 * 32768 + 15 * (512 + 512 + 32))
    # Below the window all layers keep all.
    assert kv_costs(facts.spec, PlanOptions(context=512, kv_dtype="f16"))[1] == 18 * layer * 512


def test_more_accelerators_share_weights_as_far_as_heads_allow(llama: str) -> None:
    spec = read_model(llama, "file").spec
    allowed = [n for n in range(1, 65) if split_of(spec, n).is_allowed]
    assert allowed == [1, 2, 4, 8, 16, 32]
    assert "query heads" in split_of(spec, 3).reason
    two = plan(llama, PlanOptions(gpus="2xa10", context=8192, weights="bf16"))
    assert two.kv_bytes == pytest.approx(0.9 * 48e9 - 16_060_522_496)
    assert [s.tensor_parallel for s in two.splits] == [1, 2]
    with pytest.raises(ConfigError, match="query heads"):
        plan(llama, PlanOptions(gpus="3xa10"))
    with pytest.raises(ConfigError, match="divide"):
        plan(llama, PlanOptions(gpus="4xa10", tensor_parallel=3))


def test_what_does_not_fit_or_is_too_slow_says_so(llama: str) -> None:
    assert plan(llama, PlanOptions(gpus="t4", context=8192)).limited_by == "memory"
    small = plan(llama, PlanOptions(gpus="t4", context=8192, weights="int4", slo="tpot=5ms"))
    assert (small.batch, small.replicas, small.limited_by) == (0, 0, "tpot")
    late = plan(llama, PlanOptions(gpus="l4", context=8192, weights="int4", slo="ttft=100ms"))
    assert late.limited_by == "ttft"


def test_fp8_weights_are_computed_at_the_rate_of_fp8_where_there_is_one(llama: str) -> None:
    asked = {"context": 8192, "output_tokens": 512, "slo": "ttft=5s,tpot=1s"}
    long = plan(llama, PlanOptions(gpus="h100", weights="bf16", **asked))  # type: ignore[arg-type]
    short = plan(llama, PlanOptions(gpus="h100", weights="fp8", **asked))  # type: ignore[arg-type]
    attention = 7680 * 4 * 32 * 128 * 3840 * 32 / (0.5 * 989e12)
    assert short.ttft - attention == pytest.approx((long.ttft - attention) * 989 / 1979)
    old = [plan(llama, PlanOptions(gpus="a100", weights=w, **asked)).ttft for w in ("bf16", "fp8")]  # type: ignore[arg-type]
    assert old[0] == old[1]
    for name, one in ACCELERATORS.items():
        assert one.fp8_flops in (one.flops, pytest.approx(2 * one.flops, rel=0.02)), name


def test_tighter_objectives_take_more_replicas(llama: str) -> None:
    counts = [
        plan(llama, PlanOptions(gpus="a100", context=4096, users=500, slo=f"tpot={ms}ms")).replicas
        for ms in (200, 100, 50, 30)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_money_is_what_accelerators_cost(llama: str) -> None:
    found = plan(llama, PlanOptions(gpus="2xh100", users=500, hourly_cost=2.5))
    assert found.hourly_cost == pytest.approx(2.5 * 2 * found.replicas)
    per_hour = 3600 * found.tokens_per_second
    assert found.cost_per_million_tokens == pytest.approx(5.0 / per_hour * 1e6)


def test_a_measured_profile_stands_instead_of_the_roofline(llama: str) -> None:
    found = plan(
        llama,
        PlanOptions(
            gpus="h100", context=300, output_tokens=100, profile="smollm2-135m", slo="tpot=50ms"
        ),
    )
    assert found.source.startswith("measured")
    assert found.limited_by == "tpot"
    assert 0 < found.tpot <= 0.05


def test_the_command_prints_a_table_or_json(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", llama, "--gpus", "h100", "--context", "8192", "--users", "60"]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert "52 requests at once" in table
    assert "NVIDIA H100 data sheet" in table
    assert "2 for 60 requests at once (2 accelerators)" in table
    assert main(["plan", llama, "--gpus", "h100", "--context", "8192", "--users", "1"]) == 0
    assert "1 for 1 request at once (1 accelerator)" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replicas"] == 2
    assert main(["plan", llama, "--gpus", "h100", "--slo", "ttft=1ms"]) == 1
    assert main(["plan", "--gpus", "list"]) == 0
    assert "mi300x" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ["--gpus", "0xh100"],
        ["--gpus", "warp9"],
        ["--context", "8193"],
        ["--context", "100", "--output-tokens", "100"],
        ["--slo", "itl=5ms"],
        ["--memory", "much", "--gpus", "h100"],
        ["--profile", "nowhere.json"],
    ],
)
def test_questions_without_an_answer_are_refused(
    llama: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", llama, *flags]) == 2
    assert capsys.readouterr().err.startswith("headrace: error: ")


def test_models_that_are_not_there_or_make_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not in the cache.*Did you mean smollm2-135m"):
        read_model("smolm", "file")
    with pytest.raises(ConfigError, match="not in the cache"):
        read_model(str(tmp_path / "nothing"), "file")
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(ConfigError):
        read_model(str(path), "file")
