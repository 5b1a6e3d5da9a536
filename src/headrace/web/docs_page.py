"""`/docs`: the OpenAPI document as one page of plain HTML. No script, no style sheet, nothing from elsewhere."""

import json
from html import escape
from typing import Any, Final

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
code,pre{font:14px/1.45 ui-monospace,monospace}pre{background:#f4f4f2;padding:.7rem;overflow:auto}
details{border-bottom:1px solid #ddd;padding:.4rem 0}summary{cursor:pointer}
summary b{display:inline-block;width:4.5rem}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #eee}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#242424}
details{border-color:#444}td,th{border-color:#333}}
"""
#: By what an operation's security names; the first is what counts.
_KEYS: Final = {
    "bearer": "Needs an API key where there are keys.",
    "control": "Needs the control token.",
    "operator": "Needs one of the operators' keys.",
}


def page(document: dict[str, Any]) -> str:
    """The page; every text from the document is escaped."""
    info = document["info"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>",
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        f"<p>{_text(info['description'])} As <a href=openapi.json>OpenAPI</a>.</p>",
    ]
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2><p>{_text(tag['description'])}</p>")
        for path, methods in document["paths"].items():
            parts += [
                _operation(method, path, operation)
                for method, operation in methods.items()
                if tag["name"] in operation["tags"]
            ]
    parts.append("<h2>schemas</h2>")
    parts += [
        _schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())
    ]
    return "".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> ",
        f"{_text(operation['summary'])}</summary>",
        f"<p>{_text(operation.get('description', ''))} ",
        f"{_keys(operation['security'])}</p>",
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        parts.append(f"<p>Takes {_type(body['schema'])}.</p>")
        if "example" in body:
            data = json.dumps(body["example"])
            parts.append(f"<pre>curl http://HOST{escape(path)} --json '{escape(data)}'</pre>")
    parts.append("<table>")
    for status, response in operation["responses"].items():
        kinds = ", ".join(
            f"{_type(content['schema'])} <small>{escape(kind)}</small>"
            for kind, content in response["content"].items()
        )
        parts.append(f"<tr><td>{status}<td>{_text(response['description'])}<td>{kinds}")
    return "".join([*parts, "</table></details>"])


def _keys(security: list[dict[str, Any]]) -> str:
    return _KEYS[next(iter(security[0]))] if security else "Open."


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' *' if field in required else ''}"
        f"<td>{_type(inner)}<td>{_text(inner.get('description', ''))}"
        for field, inner in schema.get("properties", {}).items()
    )
    return (
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
        f"{_text(schema.get('description', ''))}</summary><table>{rows}</table></details>"
    )


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    if "contentSchema" in schema:
        return f"events of {_type(schema['contentSchema'])}"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "anything")))


def _text(text: str) -> str:
    """Escaped, with what is between backticks as code."""
    pieces = escape(text).split("`")
    return "".join(
        f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces)
    )
