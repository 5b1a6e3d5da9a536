"""Which pipelines a fleet's file may declare."""

import msgspec
import pytest

from headrace.config.fleet.pipelines import Pipeline, PipelinesConfig, Step
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.fleet.gateway.pipelines.runner import Pipelines
from headrace.observe.metrics import Metrics


def llm(name, model="m", **fields):
    return {"name": name, "llm": {"model": model}, **fields}


def config(*items, vectors=()):
    return msgspec.convert({"items": items, "vectors": vectors}, PipelinesConfig)


def item(*steps, name="pipe"):
    return {"name": name, "steps": list(steps)}


def test_steps_and_their_models():
    made = msgspec.convert(
        item({"name": "both", "parallel": [llm("a", "x"), llm("b", "y")]}, llm("last", "z")),
        Pipeline,
    )
    assert list(made.models()) == ["x", "y", "z"]
    assert [step.name for step in made.steps[0].walk()] == ["both", "a", "b"]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([llm("a"), llm("a")], "two steps of one name"),
        ([{"name": "p", "parallel": [llm("a")]}, llm("a")], "two steps of one name"),
        ([{"name": "a"}], "needs one of"),
        ([{**llm("a"), "http": {"url": "http://x.test"}}], "needs one of"),
        ([llm("input")], "may not be called"),
        ([llm("A b")], "regex"),
        ([llm("a", when="x")], "without a condition"),
        ([llm("a"), {"name": "b", "http": {"url": "http://x.test"}}], "must be an llm"),
        ([{"name": "b", "http": {"url": "ftp://x.test"}}, llm("a")], "http://"),
        ([{"name": "b", "kserve": {"url": "x", "model": "m", "inputs": []}}, llm("a")], "http://"),
        ([], "length"),
        ([{"name": "b", "retrieve": {"store": "nothing"}}, llm("a")], "no store"),
    ],
)
def test_what_cannot_be_is_refused(steps, told):
    with pytest.raises((ConfigError, msgspec.ValidationError), match=told):
        config(item(*steps))


@pytest.mark.parametrize(
    "items",
    [
        [item(llm("a", "pipe"))],
        [item(llm("a", "two")), item(llm("b", "pipe"), name="two")],
        [item({"name": "p", "parallel": [llm("a", "pipe")]}, llm("b"))],
    ],
)
def test_pipelines_that_lead_to_themselves_are_refused(items):
    with pytest.raises(ConfigError, match="go round"):
        config(*items)


def test_pipelines_that_meet_again_are_no_circle():
    steps = [llm("a", "two"), llm("b", "two")]
    assert config(item(*steps), item(llm("c"), name="two")).items


@pytest.mark.parametrize(
    "store",
    [{"name": "s"}, {"name": "s", "path": "x", "url": "http://x.test"}, {"name": "s", "path": "x"},
     {"name": "s", "url": "x"}],
)  # fmt: skip
def test_a_store_is_one_thing(store):
    with pytest.raises(ConfigError):
        config(vectors=[store])


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ([{"name": "a", "llm": {"model": "m", "messages": [{"role": "user", "content": "{{ b.text }}"}]}}, llm("b")], "a"),
        ([llm("a", when="{{ a.text }}"), llm("b")], "a"),
        ([{"name": "p", "parallel": [llm("a"), llm("x", when="{{ a.text }}")]}, llm("b")], "x"),
        ([{"name": "a", "http": {"url": "http://x.test", "body": "{{"}}, llm("b")], "a"),
        ([{"name": "a", "kserve": {"url": "http://x.test", "model": "m", "inputs": [{"data": ["{{ b }}"]}]}}, llm("b")], "a"),
    ],
)  # fmt: skip
def test_templates_are_read_before_anybody_asks(steps, where):
    told = rf"^The step '{where}' of the pipeline '\w+': The template "
    with pytest.raises(ConfigError, match=told):
        Pipelines(config(item(*steps)), Metrics(), SystemClock())


def test_a_step_knows_its_own_kind_only():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "a", "shell": {"command": "x"}}, Step)


def test_the_same_configuration_gives_the_same_pipelines():
    before = Pipelines(config(item(llm("a"))), Metrics(), SystemClock())
    assert before.renewed(config(item(llm("a")))) is before
    assert before.renewed(config(item(llm("a", "other")))) is not before
