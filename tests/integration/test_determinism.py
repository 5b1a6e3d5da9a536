"""Same request, same seed: bitwise the same tokens and log-probabilities, whatever goes on around it.

Every scenario runs the same probe requests and must give what each gave alone, in one thread, in one
chunk. Only the instruction set may change it.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace
from tests.support.engine_run import make_request
from tests.support.real_engine import RealEngine, Said
from tests.support.tiny_gemma import make_tiny_gemma
from tests.support.tiny_models import make_tiny_llama

from headrace.core.request import Request
from headrace.core.sampling import Dry, SamplingParams, ThinkingLimit
from headrace.engine.scheduler.sequence import derive_seed
from headrace.kernels.cpu import _native
from headrace.kernels.ops import ATTENTION_CHUNK

VOCAB = 333
EOS = (2,)
FEATURES = _native.detect_cpu()
ISAS = [
    "generic",
    *["avx2"] * FEATURES.has_avx2,
    *["avx512"] * FEATURES.has_avx512,
    *["amx"] * FEATURES.has_amx,
    *["neon"] * FEATURES.has_neon,
]
KINDS = ("bf16", "int4", "windows", "int8", "f32")
#: All kinds on the best instruction set; the first three, which share least, on the others too.
CASES = [f"{kind}-{isa}" for isa in ISAS for kind in (KINDS if isa == ISAS[-1] else KINDS[:3])]

#: Every parameter that chooses tokens, in mixtures.
SAMPLING: Mapping[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 60, "top_p": 0.95, "min_p": 0.01},
    "penalised": {
        "temperature": 0.8,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.3,
    },
    "greedy-penalised": {"temperature": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.1},
    "biased": {
        "temperature": 1.2,
        "top_p": 0.9,
        "logit_bias": {2: 6.0, 40: 3.0, 41: -100.0},
        "min_tokens": 9,
    },
    "dry": {
        "temperature": 0.0,
        "dry": Dry(multiplier=2.0, base=1.5, allowed_length=1, window=64, breakers=(5, 6)),
    },
    "thinking": {
        "temperature": 1.2,
        "thinking": ThinkingLimit(max_tokens=7, end_ids=(9, 8), forced_ids=(6, 9, 8)),
    },
}


def probes() -> list[Request]:
    """One request per mixture, and one whose prompt needs more than one chunk of attention."""
    rng = random.Random(5)
    found = [
        make_request(
            name,
            [rng.randrange(3, VOCAB) for _ in range(53 + 3 * place)],
            max_tokens=24,
            seed=1000 + place,
            eos=EOS if "min_tokens" in params else (),
            logprobs=4,
            **params,
        )
        for place, (name, params) in enumerate(SAMPLING.items())
    ]
    prompt = [rng.randrange(3, VOCAB) for _ in range(ATTENTION_CHUNK + 70)]
    long = make_request("long", prompt, max_tokens=12, seed=7, logprobs=4, temperature=0.7)
    return [*found, long]


def company(count: int, *, seed: int = 11) -> list[Request]:
    """Requests of all kinds that run beside the probes."""
    rng = random.Random(seed)
    return [
        make_request(
            f"other-{seed}-{number}",
            [rng.randrange(3, VOCAB) for _ in range(rng.choice((1, 2, 15, 16, 17, 40, 130)))],
            max_tokens=rng.choice((1, 3, 20, 60)),
            seed=number,
            eos=EOS,
            n=rng.choice((1, 1, 1, 3)),
            priority=rng.choice((0, 0, 1)),
            logprobs=rng.choice((None, 0, 10)),
            **rng.choice(list(SAMPLING.values())),
        )
        for number in range(count)
    ]


@dataclass(frozen=True)
class Case:
    """A model on an instruction set, and what each probe says alone."""

    path: Path
    isa: str
    quantize: str | None
    alone: Mapping[str, Said]

    def engine(self, **options: Any) -> RealEngine:
        kept = kv_dtype(self.quantize)
        return RealEngine(self.path, isa=self.isa, quantize=self.quantize, kv_dtype=kept, **options)

    def check(self, found: Mapping[tuple[str, int], Said]) -> None:
        for name, said in self.alone.items():
            assert found[name, 0] == said, name


def kv_dtype(quantize: str | None) -> Literal["auto", "int8"]:
    """Models in int8 or int4 keep their keys and values in int8 too."""
    return "int8" if quantize else "auto"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_heads": 6,
        "max_context": 1024,
    }
    llama = make_tiny_llama(root / "bf16", **sizes)
    return {
        "bf16": llama,
        "int8": llama,
        "int4": llama,
        "f32": make_tiny_llama(root / "f32", dtype="f32", **sizes),
        "windows": make_tiny_gemma(root / "windows"),
    }


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, models: Mapping[str, Path]) -> Iterator[Case]:
    kind, isa = request.param.split("-")
    quantize = kind if kind.startswith("int") else None
    alone: dict[str, Said] = {}
    with RealEngine(
        models[kind],
        isa=isa,
        quantize=quantize,
        kv_dtype=kv_dtype(quantize),
        max_num_batched_tokens=1024,
    ) as engine:
        for probe in probes():
            alone[probe.request_id] = engine.run([probe])[probe.request_id, 0]
    assert all(len(said.token_ids) >= 12 for name, said in alone.items() if name != "biased")
    assert len(alone["biased"].token_ids) >= 9
    assert len({tuple(said.token_ids) for said in alone.values()}) == len(alone)
    return Case(models[kind], isa, quantize, alone)


def test_in_a_batch_of_32(case: Case) -> None:
    """All 32 in every step, then some leave and others come."""
    others = [
        replace(other, n=1, eos_token_ids=(), params=replace(other.params, max_tokens=70))
        for other in company(30)
    ]
    with case.engine(max_num_seqs=32, max_num_batched_tokens=2048) as engine:
        for request in [*others[:13], *probes(), *others[13:26]]:
            engine.add(request)
        for _ in range(8):
            engine.step()
            assert engine.stats.num_running == 32
        for request in others[26:]:
            engine.add(request)
        for number in range(0, 12, 3):
            engine.cancel(others[number].request_id)
            engine.step()
        case.check(engine.finish())


@pytest.mark.parametrize("budget", [8, 17, 512])
def test_in_chunks_of_any_size(case: Case, budget: int) -> None:
    with case.engine(max_num_batched_tokens=budget) as engine:
        case.check(engine.run([*company(6), *probes()]))


def test_in_whole_prompts(case: Case) -> None:
    with case.engine(max_num_batched_tokens=64, chunked_prefill=False) as engine:
        case.check(engine.run([*company(6), *probes()]))


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_after_preemption(case: Case, prefix_cache: bool) -> None:
    """More urgent sequences grow and push the probes out, in memory that barely holds the longest."""
    memory = "660KiB" if case.path.name == "windows" else "180KiB"
    if case.quantize:
        memory = "100KiB"  # int8 keys and values take little more than half
    *short, long = probes()
    with case.engine(
        kv_memory=memory, prefix_cache=prefix_cache, max_num_batched_tokens=96
    ) as engine:
        for round_, tenants in enumerate((short, [long])):
            already = engine.stats.preemptions
            for probe in tenants:
                engine.add(probe)
            for number in range(12):
                engine.step()
                engine.add(urgent(12 * round_ + number))
            found = engine.finish()
            assert engine.stats.preemptions > already
        case.check(found)


def urgent(number: int) -> Request:
    return make_request(
        f"urgent {number}",
        list(range(number, number + 14)),
        max_tokens=40,
        seed=number,
        priority=-1,
        temperature=1.0,
    )


def test_with_a_prefix_hit(case: Case) -> None:
    with case.engine() as engine:
        engine.run(company(4))
        for probe in probes():
            shorter = replace(probe, request_id="shorter", params=SamplingParams(max_tokens=2))
            prompt = probe.prompt[0].token_ids[:40]
            engine.run([replace(shorter, prompt=(replace(probe.prompt[0], token_ids=prompt),))])
            found = engine.run([probe])
            assert 0 < found[probe.request_id, 0].num_cached < probe.num_prompt_tokens
            assert found[probe.request_id, 0] == case.alone[probe.request_id]
        again = engine.run([replace(p, request_id=f"{p.request_id} again") for p in probes()])
        for name, said in case.alone.items():
            assert again[f"{name} again", 0] == said
            assert again[f"{name} again", 0].num_cached >= 48


def test_with_several_plans_in_flight(case: Case) -> None:
    with case.engine(max_uncommitted_plans=2, max_num_batched_tokens=48, threads=2) as engine:
        case.check(engine.run([*company(10), *probes()]))


def test_on_two_threads(case: Case) -> None:
    with case.engine(threads=2) as engine:
        case.check(engine.run([*company(5), *probes()]))


def test_as_one_of_four(case: Case) -> None:
    """Sequence i of n is the request with the i-th seed; a fork shares blocks and copies the last."""
    for probe in probes():
        if probe.request_id not in ("sampled", "biased", "long"):
            continue
        seeds = [derive_seed(probe.params.seed, index) for index in range(4)]
        with case.engine(max_num_batched_tokens=40) as engine:
            together = engine.run([replace(probe, n=4), *company(3)])
        with case.engine() as engine:
            for index, seed in enumerate(seeds):
                alone = replace(
                    probe, request_id=f"seed {index}", params=replace(probe.params, seed=seed)
                )
                found = engine.run([alone])[alone.request_id, 0]
                assert together[probe.request_id, index] == found
        assert together[probe.request_id, 0] == case.alone[probe.request_id]


@pytest.mark.parametrize("cut", [1, 7, 11])
def test_continued_elsewhere(case: Case, cut: int) -> None:
    with case.engine(max_num_batched_tokens=33) as engine:
        prior = {name: said.token_ids[:cut] for name, said in case.alone.items()}
        engine.run(company(3))
        found = engine.run(
            [
                *company(5, seed=12),
                *(
                    replace(probe, prior_output_ids=prior[probe.request_id])
                    for probe in probes()
                    if len(case.alone[probe.request_id].token_ids) > cut
                ),
            ]
        )
    for name, said in case.alone.items():
        if len(said.token_ids) > cut:
            assert found[name, 0] == said.after(cut), name


def test_the_real_model_alone_and_in_company() -> None:
    """SmolLM2 with its quantised file, the default instruction set and all threads."""
    prompt = [1, *range(900, 990), 198, 2]
    wanted = [
        make_request("greedy", prompt, max_tokens=20, logprobs=5, temperature=0.0),
        make_request("drawn", prompt[:70], max_tokens=20, logprobs=5, seed=4, temperature=0.8),
    ]
    others = [
        make_request(f"other {n}", list(range(500, 520 + 9 * n)), max_tokens=12, seed=n, top_k=40)
        for n in range(6)
    ]
    with RealEngine("smollm2-135m", threads=1, kv_memory="64MiB") as engine:
        alone = {
            request.request_id: engine.run([request])[request.request_id, 0] for request in wanted
        }
    with RealEngine(
        "smollm2-135m", threads=2, kv_memory="64MiB", max_num_batched_tokens=50
    ) as engine:
        engine.run([make_request("before", prompt[:64], max_tokens=1)])
        found = engine.run([*others[:3], *wanted, *others[3:]])
        assert found["greedy", 0].num_cached > 0
    for name, said in alone.items():
        assert len(said.token_ids) == 20
        assert found[name, 0] == said
