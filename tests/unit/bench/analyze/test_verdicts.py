"""Verdicts from constructed observations: what bounds, how far, what would help, with the figures in the sentences."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.bench.analyze.parts import parts_of
from headrace.bench.analyze.roofline import decode_distance, prefill_distance, steps_of
from headrace.bench.analyze.run import text_of
from headrace.bench.analyze.values import (
    Analysis,
    Hardware,
    Model,
    Observations,
    Part,
    Probe,
    ServerKind,
    Traffic,
)
from headrace.bench.analyze.verdict import analyze

PROBE = Probe(
    round_trip=0.001,
    tokenise=1e-6,
    prefill=0.0005,
    first_token=0.02,
    tpot=0.01,
    batch=8,
    batch_tpot=0.017,
)
MODEL = Model(weight_bytes=100e6, parameters=200e6, kv_bytes=1000.0, kv_format="bf16")
HARDWARE = Hardware(memory=20e9, compute=1e12, source="as given")
TRAFFIC = Traffic(
    seconds=10.0, requests=100, running=0.2, waiting=0.0, max_running=16, kv_usage=0.1, queue=0.001,
    ttft=0.1, prefill=0.05, decode=1.0, prompt_tokens=200, output_tokens=101, hit_share=0.5, preemptions=0.0,
)  # fmt: skip
SEEN = Observations(
    kind=ServerKind.HEADRACE, traffic=TRAFFIC, probe=PROBE, model=MODEL, hardware=HARDWARE
)


def with_traffic(**fields: object) -> Observations:
    return replace(SEEN, traffic=replace(TRAFFIC, **fields))


def change(analysis: Analysis, words: str) -> float:
    """The gain of the change that says these words; 0 where it is not proposed."""
    found = [finding.gain for finding in analysis.findings if words in finding.change]
    assert len(found) <= 1
    return found[0] if found else 0.0


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"decode": 5.0}, Part.DECODE),
        ({"prefill": 5.0}, Part.PREFILL),
        ({"queue": 5.0}, Part.QUEUEING),
    ],
)
def test_the_largest_part_bounds(fields: dict[str, float], part: Part) -> None:
    analysis = analyze(with_traffic(**fields))
    assert analysis.bound is part
    assert next(iter(analysis.seconds)) == part
    assert f"{str(part).capitalize()} bounds latency: 5 s of" in analysis.sentences[0]


def test_a_far_or_slowly_tokenising_server() -> None:
    far = analyze(replace(SEEN, probe=replace(PROBE, round_trip=4.0)))
    assert far.bound is Part.NETWORK
    assert far.findings[0].change.startswith("A shorter way")
    slow = analyze(replace(SEEN, probe=replace(PROBE, tokenise=0.02)))
    assert slow.bound is Part.TOKENISATION
    assert "50 tokens a second" in slow.findings[0].because


def test_without_traffic_the_probe_is_reckoned_with() -> None:
    analysis = analyze(replace(SEEN, traffic=Traffic(seconds=10.0, requests=1)))
    assert analysis.seconds["decode"] == pytest.approx(127 * 0.01)
    assert analysis.seconds["prefill"] == pytest.approx(512 * 0.0005)
    assert "queueing" not in analysis.seconds
    assert "the probe alone" in analysis.basis
    assert any("1 requests ended" in sentence for sentence in analysis.unknown)


def test_nothing_known_is_said_to_be_unknown() -> None:
    analysis = analyze(Observations())
    assert analysis.bound is None
    assert (analysis.seconds, analysis.findings, analysis.sentences) == ({}, (), ())
    assert len(analysis.unknown) == 3
    assert "Not known:" in text_of(analysis)


def test_prefill_of_a_gateway_is_what_is_left_of_the_first_token() -> None:
    parts = parts_of(with_traffic(prefill=None, ttft=0.5, queue=0.1))
    assert parts[Part.PREFILL] == pytest.approx(0.5 - 0.1 - 200e-6)


def test_the_distance_of_one_stream() -> None:
    quiet = replace(SEEN, traffic=Traffic())
    distance = decode_distance(quiet)
    assert distance is not None
    assert distance.rate == pytest.approx(100.0)
    # 100 MB of weights and 512 + 64 tokens of keys and values, at 20 GB/s.
    assert distance.limit == pytest.approx(20e9 / (100e6 + 1000 * 576))
    prefill = prefill_distance(quiet)
    assert prefill is not None
    assert (prefill.rate, prefill.limit) == pytest.approx((2000.0, 2500.0))
    steps = steps_of(quiet)
    assert steps is not None
    assert (steps.fixed, steps.each) == pytest.approx((0.009, 0.001))


def test_beside_others_the_probe_says_nothing_of_the_machine() -> None:
    busy = with_traffic(running=4.0, decode=2.0)
    assert prefill_distance(busy) is None
    assert steps_of(busy) is None
    distance = decode_distance(busy)
    assert distance is not None
    assert distance.rate == pytest.approx(4 / 0.02)
    analysis = analyze(busy)
    assert any("Decoding 4.0 streams at once" in sentence for sentence in analysis.sentences)
    assert any("4.0 requests of others" in sentence for sentence in analysis.unknown)


def test_full_slots_and_free_memory_ask_for_slots() -> None:
    # Quiet while it was probed, full before: the mean of the two looks is what the page told.
    full = with_traffic(running=16.0, waiting=9.0, queue=3.0, kv_usage=0.3)
    assert change(analyze(full), "More slots") == 0.0  # how a step grows is not known
    seen = replace(full, traffic=replace(full.traffic, running=0.45, max_running=0.5))
    analysis = analyze(seen)
    gain = change(analysis, "More slots")
    total = sum(analysis.seconds.values())
    ratio = 2 * (0.009 + 0.0005) / (0.009 + 0.001)
    assert gain == pytest.approx(3.0 * (1 - 1 / ratio) / total)
    assert change(analyze(with_traffic(waiting=0.0)), "More slots") == 0.0


def test_a_full_cache_asks_for_memory_or_fewer_bits() -> None:
    full = with_traffic(running=4.0, waiting=9.0, queue=3.0, kv_usage=0.98, preemptions=20.0)
    analysis = analyze(full)
    assert change(analysis, "twice the size") > 0.2
    assert change(analysis, "8 bits") > 0.2
    assert "98% full, 9 requests wait and 20 were preempted" in analysis.findings[0].because
    int8 = analyze(replace(full, model=replace(MODEL, kv_format="int8")))
    assert change(int8, "8 bits") == 0.0
    assert change(analyze(SEEN), "twice the size") == 0.0


def test_a_replica_halves_or_better() -> None:
    saturated = with_traffic(running=15.0, waiting=0.0, queue=2.0, replicas=1)
    analysis = analyze(saturated)
    total = sum(analysis.seconds.values())
    busy, less = 15 / 16, 15 / 32
    ratio = (less / (1 - less)) / (busy / (1 - busy))
    assert change(analysis, "One more replica (2)") == pytest.approx(2.0 * (1 - ratio) / total)
    idle = analyze(with_traffic(running=4.0, queue=2.0, replicas=3))
    assert change(idle, "One more replica (4)") == pytest.approx(
        2.0 / 4 / sum(idle.seconds.values())
    )
    assert change(analyze(with_traffic(queue=None)), "replica") == 0.0


def test_a_gateway_that_spreads_prefixes_asks_for_routing() -> None:
    spread = replace(with_traffic(hit_share=0.2, replicas=4, prefill=2.0), kind=ServerKind.GATEWAY)
    analysis = analyze(spread)
    total = sum(analysis.seconds.values())
    assert change(analysis, "Routing by prefix") == pytest.approx(2.0 * 0.6 / 0.8 / total)
    for other in (
        replace(spread, kind=ServerKind.HEADRACE),
        replace(spread, traffic=replace(spread.traffic, replicas=1)),
        replace(spread, traffic=replace(spread.traffic, hit_share=0.0)),
        replace(spread, traffic=replace(spread.traffic, hit_share=0.97)),
    ):
        assert change(analyze(other), "Routing") == 0.0


def test_weights_in_eight_bits_may_be_read_in_four() -> None:
    wide = replace(SEEN, model=replace(MODEL, weight_bytes=200e6 * 8.5 / 8), traffic=Traffic())
    assert change(analyze(wide), "4 bits") > 0.1
    assert change(analyze(replace(SEEN, traffic=Traffic())), "4 bits") == 0.0


def test_a_machine_that_is_far_away_is_asked_for() -> None:
    analysis = analyze(replace(SEEN, hardware=Hardware()))
    assert any("--memory-bandwidth" in sentence for sentence in analysis.unknown)


numbers = st.none() | st.floats(0, 1e6)
shares = st.none() | st.floats(0, 1)
seen_of_any_kind = st.builds(
    Observations,
    kind=st.sampled_from(ServerKind),
    traffic=st.builds(
        Traffic, seconds=st.floats(0, 1e4), requests=st.floats(0, 1e6), running=numbers, waiting=numbers,
        max_running=numbers, kv_usage=shares, queue=numbers, ttft=numbers, prefill=numbers, decode=numbers,
        prompt_tokens=numbers, output_tokens=numbers, hit_share=shares, preemptions=numbers, replicas=numbers,
    ),
    probe=st.builds(
        Probe, round_trip=numbers, tokenise=numbers, prefill=numbers, first_token=numbers, tpot=numbers,
        batch=st.integers(1, 256), batch_tpot=numbers,
    ),
    model=st.builds(Model, weight_bytes=numbers, parameters=numbers, kv_bytes=numbers, kv_format=st.sampled_from(["", "bf16", "int8"])),
    hardware=st.builds(Hardware, memory=numbers, compute=numbers),
)  # fmt: skip


@given(seen_of_any_kind)
def test_whatever_is_observed_the_verdict_holds_together(seen: Observations) -> None:
    analysis = analyze(seen)
    gains = [finding.gain for finding in analysis.findings]
    assert gains == sorted(gains, reverse=True)
    assert all(0.02 <= gain <= 1.0 + 1e-9 for gain in gains)
    for finding in analysis.findings:
        assert re.search(r"\d", finding.because), finding
        assert "nan" not in finding.because
    assert all(re.search(r"\d", sentence) for sentence in analysis.sentences)
    assert text_of(analysis)
