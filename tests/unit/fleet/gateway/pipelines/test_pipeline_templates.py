"""Templates of pipelines: a sandbox, bounds, and what is refused before anybody asks."""

import pytest

from headrace.core.errors import BadRequestError, ConfigError
from headrace.fleet.gateway.pipelines.templates import Templates

VALUES = {"input": "hi", "found": {"hits": [{"text": "a"}, {"text": "b"}]}, "none": None}


def made(text, values=VALUES, max_text=100):
    templates = Templates(max_text)
    templates.check(text, values)
    return templates.text(text, values)


def test_values_are_put_in():
    assert made("{{ input }} {{ found.hits[1].text }}") == "hi b"
    assert made("{% for hit in found.hits %}{{ loop.index }}{{ hit.text }}{% endfor %}") == "1a2b"
    assert made("{{ input | tojson }}", {"input": 'a"b'}) == '"a\\"b"'
    assert made("{% set x = input %}{{ x }}") == "hi"


def test_what_clients_send_is_no_template():
    assert made("{{ input }}", {"input": "{{ found }}"}) == "{{ found }}"


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ input.__init__.__globals__ }}",
        "{{ found.hits.append(1) }}",
        "{{ found.hits.clear() }}",
        "{{ ''.format.__self__ }}",
    ],
)
def test_the_sandbox_lets_nothing_out(text):
    with pytest.raises(BadRequestError):
        made(text + "{{ found.hits.x.y }}")
    assert VALUES["found"]["hits"] == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    "text", ["{{ found.x.y }}", "{{ input / 0 }}", "{{ 1 / 0 }}", "{{ found.hits + 1 }}"]
)
def test_values_that_do_not_fit_are_refused(text):
    with pytest.raises(BadRequestError, match="template"):
        made(text)


def test_results_are_bounded_in_bytes():
    assert made("{{ input }}", {"input": "é" * 50}) == "é" * 50
    for text in ("{{ input }}{{ input }}", "{% for i in input %}{{ input }}{% endfor %}"):
        with pytest.raises(BadRequestError, match="too long"):
            made(text, {"input": "é" * 26})


@pytest.mark.parametrize(
    "text", ["{{ input", "{% if %}", "{{ input | nosuch }}", "{% include 'x' %}{{"]
)
def test_what_does_not_compile_is_refused_at_once(text):
    with pytest.raises(ConfigError, match="not good"):
        Templates(100).check(text, VALUES)


@pytest.mark.parametrize(
    "text", ["{{ later.text }}", "{{ range(9) }}", "{% if later %}{% endif %}"]
)
def test_names_that_are_not_there_are_refused_at_once(text):
    with pytest.raises(ConfigError, match="not there"):
        Templates(100).check(text, VALUES)


@pytest.mark.parametrize(
    ("text", "holds"),
    [("", True), ("{{ input }}", True), ("{{ none }}", False), ("{{ input == 'x' }}", False),
     ("{{ 0 }}", False), ("no", False), (" \n", False), ("{{ found.nothing }}", False)],
)  # fmt: skip
def test_conditions(text, holds):
    templates = Templates(100)
    templates.check(text, VALUES)
    assert templates.holds(text, VALUES) is holds


def test_an_expression_alone_gives_its_value():
    value = {
        "data": "{{ found.hits | map(attribute='text') | list }}",
        "shape": ["{{ found.hits | length }}", 1],
        "text": "{{ input }} {{ input }}",
        "digits": ["{{ digits }}"],
    }
    values = {**VALUES, "digits": "12"}
    templates = Templates(100)
    templates.check_deep(value, values)
    assert templates.deep(value, values) == {
        "data": ["a", "b"],
        "shape": [2, 1],
        "text": "hi hi",
        "digits": ["12"],
    }


@pytest.mark.parametrize(
    "text", ["{{ found.nothing }}", "{{ found.hits | map('upper') }}", "{{ input * 99 }}"]
)
def test_a_value_that_cannot_be_sent_is_refused(text):
    templates = Templates(100)
    templates.check_deep([text], VALUES)
    with pytest.raises(BadRequestError):
        templates.deep([text], VALUES)
