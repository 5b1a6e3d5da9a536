"""`/openapi.json`: OpenAPI 3.1, made from the routes and the wire types; nothing in it is written twice."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, inspect

from headrace import __version__
from headrace.config.docs import field_docs
from headrace.web.endpoint import Access, Endpoint, Operation

_TAGS: Final = {
    "generate": "Text from a model.",
    "responses": "OpenAI's newer API, which keeps conversations.",
    "embed": "Vectors and scores of texts.",
    "text": "Text and tokens, without generating.",
    "models": "What is served.",
    "batches": "Many requests that nobody waits for.",
    "control": "Models parked, woken, loaded and unloaded, for those who run the server.",
    "operate": "For probes, scrapers and routers.",
    "gateway": "What a gateway says of itself.",
    "admin": "For operators: replicas, accounts, pools, alerts.",
    "dashboard": "A page for operators.",
    "documents": "About this API.",
}
#: What any answer may be, and why.
_ERRORS: Final = {
    400: "The request is wrong; `param` names the field.",
    401: "No API key, or one that is not valid here.",
    403: "A wrong peer token, or a field for trusted peers only.",
    404: "No such model or thing.",
    408: "The request took too long to arrive, or its time ran out before its first token.",
    413: "The body is too large.",
    415: "The body is said to be no JSON.",
    429: "Full; `Retry-After` says when to come back.",
    431: "The headers are too large or too many.",
    499: "The request was cancelled.",
    500: "A fault of the server's.",
    503: "Loading, draining, restarting, or too many connections; `Retry-After` says when to come back.",
}
_ANY: Final = (408, 431, 500, 503)
_WITH_BODY: Final = (400, 403, 404, 413, 415, 429)
_GENERATING: Final = (499,)
_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(routes: Sequence[Endpoint], about: str) -> dict[str, Any]:
    """The whole document; `about` describes it. Reads the sources of the wire types for their fields' texts."""
    kinds = list(dict.fromkeys(_types(routes)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_type = dict(zip(kinds, schemas, strict=True))
    _describe(components, kinds)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, by_type)
    used = {route.operation.tag for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": __version__,
            "description": about,
        },
        "tags": [{"name": n, "description": text} for n, text in _TAGS.items() if n in used],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "operator": {"type": "http", "scheme": "bearer"},
                "control": {"type": "apiKey", "in": "header", "name": "x-headrace-control"},
            },
        },
    }


#: Of routes that are not for whoever has an API key.
_SECURITY: dict[Access, list[dict[str, list[str]]]] = {
    Access.OPEN: [],
    Access.CONTROL: [{"control": []}],
    Access.ADMIN: [{"operator": []}],
}


def statuses(operation: Operation) -> tuple[int, ...]:
    """The errors that an operation may answer with."""
    found = {*_ANY, *operation.errors}
    if operation.access is not Access.OPEN:
        found.add(401)
    if operation.request is not None or operation.form is not None:
        found |= {*_WITH_BODY}
    if operation.chunk is not None:
        found |= {*_GENERATING}
    return tuple(sorted(found))


def _operation(route: Endpoint, by_type: dict[Any, Any]) -> dict[str, Any]:
    operation = route.operation
    made: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _identifier(route),
        "tags": [operation.tag],
        "parameters": _parameters(route),
        "responses": {"200": _answer(operation, by_type)},
        "security": _SECURITY.get(operation.access, [{"bearer": []}, {"header": []}]),
    }
    if operation.description:
        made["description"] = operation.description
    if operation.request is not None:
        content: dict[str, Any] = {"schema": _any_of(operation.request, by_type)}
        if operation.example is not None:
            content["example"] = operation.example
        made["requestBody"] = {"required": True, "content": {"application/json": content}}
    if operation.form is not None:
        content = {"multipart/form-data": {"schema": operation.form}}
        made["requestBody"] = {"required": True, "content": content}
    problem = {"application/json": {"schema": by_type[operation.error]}}
    for status in statuses(operation):
        made["responses"][str(status)] = {"description": _ERRORS[status], "content": problem}
    if route.path in ("/readyz", "/health"):
        made["responses"]["503"] = {
            "description": "Requests should go elsewhere; the body says why.",
            "content": made["responses"]["200"]["content"],
        }
    return made


def _answer(operation: Operation, by_type: dict[Any, Any]) -> dict[str, Any]:
    kind = operation.content_type.partition(";")[0]
    content = {kind: {"schema": _any_of(operation.response, by_type)}}
    if operation.chunk is not None:
        content["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": "Events whose data is the schema below as JSON, then `data: [DONE]`.",
                "contentMediaType": "application/json",
                "contentSchema": _any_of(operation.chunk, by_type),
            }
        }
    return {
        "description": "Done.",
        "content": content,
        "headers": {
            "x-request-id": {
                "description": "The client's name for the request, or ours.",
                "schema": {"type": "string"},
            }
        },
    }


def _parameters(route: Endpoint) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    in_query = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in route.operation.query.items()
    ]
    return in_path + in_query


def _identifier(route: Endpoint) -> str:
    path = _PARAMETER.sub(r"by_\1", route.path)
    return re.sub(r"\W+", "_", route.method.lower() + path)


def _any_of(kind: Any, by_type: dict[Any, Any]) -> Any:
    if kind is None:
        return {"type": "string"}
    if isinstance(kind, tuple):
        return {"anyOf": [by_type[one] for one in kind]}
    return by_type[kind]


def _types(routes: Iterable[Endpoint]) -> Iterator[Any]:
    for route in routes:
        told = route.operation
        for kind in (told.request, told.response, told.chunk, told.error):
            if kind is not None:
                yield from kind if isinstance(kind, tuple) else (kind,)


# -- texts of fields --------------------------------------------------------------------------------


def _describe(components: dict[str, Any], kinds: Iterable[Any]) -> None:
    """Put each field's docstring beside it."""
    seen: set[type[Struct]] = set()
    for info in inspect.multi_type_info(list(kinds)):
        _collect(info, seen)
    for owner in seen:
        properties = components.get(owner.__name__, {}).get("properties", {})
        for base in reversed(owner.__mro__):
            if base is not Struct and issubclass(base, Struct):
                for name, text in field_docs(base).items():
                    if name in properties:
                        properties[name] = {**properties[name], "description": text}


def _collect(info: Any, seen: set[type[Struct]]) -> None:
    if isinstance(info, inspect.StructType):
        if info.cls in seen:
            return
        seen.add(info.cls)
        for field in info.fields:
            _collect(field.type, seen)
    inside = [getattr(info, name, None) for name in ("type", "item_type", "value_type")]
    for inner in (*inside, *getattr(info, "types", ())):
        if isinstance(inner, inspect.Type):
            _collect(inner, seen)
