"""The last steps and sequences as a trace: bounded, nested, side by side where they overlap."""

from headrace.core.events import RequestTimes
from headrace.core.stats import StepStats
from headrace.observe.timeline import SequenceTimes, Timeline


def step(number, *, prefill=0, decode=1):
    return StepStats(
        step_id=number, started=100.0 + number, seconds=0.5, num_prefill_tokens=prefill,
        num_decode_tokens=decode, num_sequences=1, inputs_seconds=0.1, model_seconds=0.3,
        sample_seconds=0.9,
    )  # fmt: skip


def sequence(name, queued, last):
    times = RequestTimes(queued - 0.1, queued, queued + 0.1, queued + 0.2)
    return SequenceTimes(name, times, last, 5, 3, "stop")


def slices(timeline, num_steps=100):
    return [event for event in timeline.events(1, "m", num_steps) if event["ph"] == "X"]


def test_old_steps_are_forgotten_and_fewer_can_be_asked_for():
    timeline = Timeline(10)
    timeline.note_steps([step(i) for i in range(25)])
    steps = [e["args"]["step"] for e in slices(timeline) if "step" in e.get("args", {})]
    assert steps == list(range(15, 25))
    steps = [e["args"]["step"] for e in slices(timeline, 2) if "step" in e.get("args", {})]
    assert steps == [23, 24]
    assert slices(Timeline(0)) == []


def test_parts_lie_within_their_step():
    timeline = Timeline(10)
    timeline.note_steps([step(0, prefill=4, decode=0), step(1), step(2, prefill=3)])
    found = slices(timeline)
    assert [e["name"] for e in found if "args" in e] == ["prefill", "decode", "mixed"]
    for whole, *parts in (found[i : i + 4] for i in range(0, len(found), 4)):
        assert [p["name"] for p in parts] == ["inputs", "model", "sample"]
        assert parts[0]["ts"] == whole["ts"]
        end = parts[-1]["ts"] + parts[-1]["dur"]
        assert end <= whole["ts"] + whole["dur"] + 1e-3


def test_sequences_that_overlap_have_tracks_of_their_own():
    timeline = Timeline(10)
    timeline.note_steps([step(0)])
    for each in (
        sequence("a", 100.0, 103.0),
        sequence("b", 101.0, 104.0),
        sequence("c", 103.5, 105.0),
    ):
        timeline.note_sequence(each)
    lanes = {e["name"]: e["tid"] for e in slices(timeline) if e["name"] in "abc"}
    assert lanes == {"a": 2, "b": 3, "c": 2}
    kinds = [e["name"] for e in slices(timeline) if e["tid"] == 3]
    assert kinds == ["b", "queue", "prefill", "decode"]
