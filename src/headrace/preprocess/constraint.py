"""Request fields that bound the text of an answer → `Grammar`.

Four dialects say the same things in different words: OpenAI (`response_format`), vLLM (`structured_outputs`,
`guided_*`), SGLang (`regex`, `ebnf`, `structural_tag`) and llama.cpp (`grammar`, `json_schema`). A request
may use one of them, once. What is read here is well-formed and small enough; whether it is a grammar is
found out where it is compiled. Every refusal names the field.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from headrace.api.fields import GenerationFields
from headrace.core.errors import BadRequestError
from headrace.core.grammar import Grammar, GrammarKind
from headrace.grammar.schemas import with_options
from headrace.grammar.tags import Tag, choice, tagged_text

#: Characters of a schema, a grammar or all choices; of a regular expression, which costs more.
MAX_CHARS: Final = 262_144
MAX_REGEX_CHARS: Final = 16_384
MAX_CHOICES: Final = 4096
MAX_TAGS: Final = 256

ANY_OBJECT: Final = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


class Constraint(Struct, frozen=True):
    """What bounds an answer, and the field that said so."""

    grammar: Grammar
    field: str


def read_constraint(fields: GenerationFields) -> Constraint | None:
    """The one constraint of a request, if any. Raises BadRequestError."""
    found = [
        Constraint(grammar, path)
        for name, read in _READERS.items()
        if (value := getattr(fields, name)) is not None
        for path, grammar in [read(value, name)]
        if grammar is not None
    ]
    if len(found) > 1:
        raise _fault(
            found[1].field,
            f"cannot be used together with '{found[0].field}'; one bounds the answer",
        )
    if found and fields.grammar_lazy:
        raise _fault("grammar_lazy", "is not supported; 'structural_tag' leaves text free")
    return found[0] if found else None


def constraint_field(fields: GenerationFields) -> str:
    """The field that bounds the answer of a request that has been read; `tools` when no other does."""
    return next((name for name in _READERS if getattr(fields, name) is not None), "tools")


Found = tuple[str, Grammar | None]


def _response_format(value: Any, path: str) -> Found:
    """OpenAI's, with llama.cpp's `schema` beside the type, and the types of vLLM, TGI and others."""
    form = _object(value, path)
    kind = form.get("type")
    if kind == "text":
        return path, None
    if kind in ("json_object", "json", "json_schema"):
        return _json_format(form, path)
    if kind == "structural_tag":
        return path, _tags(form, path)
    if kind == "regex":
        name = "regex" if "regex" in form else "pattern" if "pattern" in form else "value"
        return _regex(form.get(name), f"{path}.{name}")
    if kind == "grammar":
        return _ebnf(form.get("grammar"), f"{path}.grammar")
    raise _fault(
        f"{path}.type",
        "must be 'text', 'json_object', 'json_schema', 'structural_tag', 'regex' or 'grammar'",
    )


def _json_format(form: dict[str, Any], path: str) -> Found:
    if form["type"] == "json_schema" and form.get("schema") is None:
        path += ".json_schema"
        inner = _object(form.get("json_schema"), path)
        if inner.get("schema") is None:
            raise _fault(f"{path}.schema", "is required")
        strict = inner.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise _fault(f"{path}.strict", "must be true or false")
        # Without `strict`, OpenAI promises to try: what we cannot enforce is left out.
        return _schema(inner["schema"], f"{path}.schema", is_lenient=not strict)
    name = "value" if form.get("schema") is None else "schema"
    if form.get(name) is None:
        return path, ANY_OBJECT
    return _schema(form[name], f"{path}.{name}")


def _structured_outputs(value: Any, path: str) -> Found:
    """The object of vLLM: one of json, regex, choice, grammar, json_object, structural_tag."""
    form = _object(value, path)
    given = [name for name in _STRUCTURED if form.get(name) not in (None, False)]
    if len(given) > 1:
        raise _fault(f"{path}.{given[1]}", f"cannot be used together with '{path}.{given[0]}'")
    if not given:
        return path, None
    name = given[0]
    place, grammar = _STRUCTURED[name](form[name], f"{path}.{name}")
    if grammar is not None and name in ("json", "json_object"):
        options: dict[str, Any] = {}
        if form.get("disable_any_whitespace"):
            options["whitespace_flexible"] = False
        elif form.get("whitespace_pattern") is not None:
            options["whitespace_pattern"] = _text(
                form["whitespace_pattern"], f"{path}.whitespace_pattern", MAX_REGEX_CHARS
            )
        grammar = with_options(grammar, options)
    return place, grammar


def _schema(value: Any, path: str, *, is_lenient: bool = False) -> Found:
    """A schema as an object, as true or false, or as JSON text of either."""
    if isinstance(value, str):
        try:
            value = json.loads(_text(value, path, MAX_CHARS))
        except (ValueError, RecursionError):
            raise _fault(path, "is not valid JSON") from None
    if not isinstance(value, dict | bool):
        raise _fault(path, "must be a JSON Schema: an object, true or false")
    if value is True:
        value = {}
    if value is False:
        raise _fault(path, "allows nothing")
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        raise _fault(path, "is not plain JSON, or is nested too deeply") from None
    grammar = Grammar(GrammarKind.JSON_SCHEMA, _text(text, path, MAX_CHARS))
    if is_lenient:
        grammar = with_options(grammar, {"lenient": True, "coerce_one_of": True})
    return path, grammar


def _any_object(value: Any, path: str) -> Found:
    if not isinstance(value, bool):
        raise _fault(path, "must be true or false")
    return path, ANY_OBJECT if value else None


def _regex(value: Any, path: str) -> Found:
    return path, Grammar(GrammarKind.REGEX, _text(value, path, MAX_REGEX_CHARS))


def _ebnf(value: Any, path: str) -> Found:
    return path, Grammar(GrammarKind.EBNF, _text(value, path, MAX_CHARS))


def _choice(value: Any, path: str) -> Found:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise _fault(path, "must be a list of at least one text")
    if len(value) > MAX_CHOICES:
        raise _fault(path, f"has {len(value)} texts; at most {MAX_CHOICES} are taken")
    grammar = choice(value)
    _text(grammar.text, path, MAX_CHARS)
    return path, grammar


def _structural_tag(value: Any, path: str) -> Found:
    if isinstance(value, str):
        try:
            value = json.loads(_text(value, path, MAX_CHARS))
        except (ValueError, RecursionError):
            raise _fault(path, "is not valid JSON") from None
    return path, _tags(_object(value, path), path)


def _tags(form: dict[str, Any], path: str) -> Grammar:
    """Free text in which each trigger begins one of the structures: {structures, triggers}."""
    structures, triggers = form.get("structures"), form.get("triggers")
    if not isinstance(structures, list) or not 1 <= len(structures) <= MAX_TAGS:
        raise _fault(f"{path}.structures", f"must be a list of 1 to {MAX_TAGS} objects")
    if not isinstance(triggers, list) or not 1 <= len(triggers) <= MAX_TAGS:
        raise _fault(f"{path}.triggers", f"must be a list of 1 to {MAX_TAGS} texts")
    names = [
        _text(trigger, f"{path}.triggers[{i}]", MAX_REGEX_CHARS)
        for i, trigger in enumerate(triggers)
    ]
    tags = []
    for i, structure in enumerate(structures):
        place = f"{path}.structures[{i}]"
        tag = _object(structure, place)
        begin = _text(tag.get("begin"), f"{place}.begin", MAX_REGEX_CHARS)
        if not any(begin.startswith(trigger) for trigger in names):
            raise _fault(f"{place}.begin", "does not begin with one of the triggers")
        end = tag.get("end")
        if not isinstance(end, str) or len(end) > MAX_REGEX_CHARS:
            raise _fault(f"{place}.end", "must be a text")
        _, content = _schema(tag.get("schema", {}), f"{place}.schema")
        assert content is not None
        tags.append(Tag(begin=begin, content=content, end=end))
    grammar = tagged_text(tags, names)
    _text(grammar.text, path, 2 * MAX_CHARS)
    return grammar


def _object(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, Struct):
        value = msgspec.to_builtins(value)
    if not isinstance(value, dict):
        raise _fault(path, "must be an object")
    return value


def _text(value: Any, path: str, limit: int) -> str:
    if not isinstance(value, str) or not value:
        raise _fault(path, "must be a text, and not an empty one")
    if len(value) > limit:
        raise _fault(path, f"has {len(value)} characters; at most {limit} are taken")
    return value


def _fault(path: str, what: str) -> BadRequestError:
    return BadRequestError(f"'{path}' {what}.", param=path)


Reader = Callable[[Any, str], Found]

_STRUCTURED: Final[dict[str, Reader]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _ebnf,
    "json_object": _any_object,
    "structural_tag": _structural_tag,
}
_READERS: Final[dict[str, Reader]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _ebnf,
    "grammar": _ebnf,
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}
