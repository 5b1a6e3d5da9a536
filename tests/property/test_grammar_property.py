"""Random schemas, and answers by chance within their masks: what is complete is valid."""

import json
from random import Random

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.grammars import END, allowed, byte_compiler, schema

from headrace.grammar.matcher import Matcher

COMPILER = byte_compiler()
LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
    st.integers(-50, 50).map(lambda n: {"type": "integer", "minimum": n, "maximum": n + 60}),
    st.integers(0, 4).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 2}),
    st.lists(st.integers(-9, 9) | st.text(max_size=3), min_size=1, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="$"), min_size=1, max_size=4)


def larger(inner):
    objects = st.dictionaries(KEYS, inner, max_size=3).map(
        lambda found: {
            "type": "object",
            "properties": found,
            "required": list(found),
            "additionalProperties": False,
        }
    )
    arrays = inner.map(lambda item: {"type": "array", "items": item, "maxItems": 2})
    either = st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options})
    return objects | arrays | either


@settings(max_examples=60, deadline=None)
@given(st.recursive(LEAVES, larger, max_leaves=5), st.integers(0, 2**32))
def test_what_is_complete_is_valid(wanted, seed):
    matcher, chance, said = Matcher(COMPILER.compile(schema(json.dumps(wanted)))), Random(seed), b""
    while not matcher.is_complete and len(said) < 300:
        ids = sorted(allowed(matcher))
        assert ids, "a place without a way on"
        if END in ids:
            break
        byte = chance.choice(ids)
        assert matcher.accept([byte])
        said += bytes([byte])
    if matcher.is_complete or END in allowed(matcher):
        jsonschema.validate(json.loads(said), wanted)
