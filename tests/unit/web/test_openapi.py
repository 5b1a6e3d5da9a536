"""The document has every route with its key and its errors, and what routes take and give fits its schemas."""

import re
from html.parser import HTMLParser

import jsonschema
import pytest
from tests.support.in_process import InProcess

from headrace.server.app import build_routes
from headrace.web.endpoint import Access


@pytest.fixture
async def app(tmp_path):
    async with InProcess(tmp_path) as running:
        yield running


async def document(app):
    answer = await app.http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def validator(doc, schema):
    whole = {**schema, "components": doc["components"]}
    jsonschema.Draft202012Validator.check_schema(whole)
    return jsonschema.Draft202012Validator(whole)


async def test_every_route_is_in_it_with_its_key_and_its_errors(app):
    doc = await document(app)
    routes = build_routes(app.replica)
    found = {(m.upper(), path) for path, methods in doc["paths"].items() for m in methods}
    assert found == {(r.method, re.sub(r":\w+\}", "}", r.path)) for r in routes}
    ids = [op["operationId"] for methods in doc["paths"].values() for op in methods.values()]
    assert len(set(ids)) == len(ids) == len(routes)
    tags = {tag["name"] for tag in doc["tags"]}
    for route in routes:
        operation = doc["paths"][re.sub(r":\w+\}", "}", route.path)][route.method.lower()]
        is_open = route.operation.access is Access.OPEN
        assert (operation["security"] == []) == is_open
        assert ("401" in operation["responses"]) == (not is_open)
        assert {"200", "500", "503"} <= operation["responses"].keys()
        has_body = route.operation.request is not None or route.operation.form is not None
        assert ("requestBody" in operation) == has_body
        assert set(operation["tags"]) <= tags
        if has_body:
            assert {"400", "413", "415", "429"} <= operation["responses"].keys()


async def test_examples_fit_their_schemas_and_so_do_the_answers(app):
    doc = await document(app)
    tried = 0
    for path, methods in doc["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if body:
                validator(doc, body["schema"]).validate(body["example"])
            answer = await app.http.request(
                method, path.replace("{name}", "fake"), json=body.get("example")
            )
            said = operation["responses"][str(answer.status_code)]["content"]
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind in said, path
            if kind == "application/json":
                validator(doc, said[kind]["schema"]).validate(answer.json())
                tried += 1
    assert tried > 15


async def test_every_reference_leads_somewhere_and_fields_are_described(app):
    doc = await document(app)
    schemas = doc["components"]["schemas"]
    named = set(re.findall(r"'#/components/schemas/(\w+)'", str(doc)))
    assert named == schemas.keys() & named
    assert "ChatRequest" in named
    fields = schemas["ChatRequest"]["properties"]
    assert "Wins over" in fields["max_completion_tokens"]["description"]
    assert fields["cache_salt"]["description"].startswith("Separates prefix caches")
    validator(doc, {"$ref": "#/components/schemas/ChatRequest"})
    with pytest.raises(jsonschema.ValidationError):
        validator(doc, {"$ref": "#/components/schemas/ChatRequest"}).validate({"messages": []})


class Page(HTMLParser):
    """Tags and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.ids = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        values = dict(attrs)
        self.ids.add(values.get("id"))
        self.links |= {values[name] for name in ("href", "src") if name in values}


async def test_the_page_needs_nothing_from_elsewhere(app):
    answer = await app.http.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    page = Page(answer.text)
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert all(link == "openapi.json" or link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    for route in build_routes(app.replica):
        assert re.sub(r":\w+\}", "}", route.path) in answer.text
