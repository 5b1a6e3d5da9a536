"""`/openapi.json` and `/docs` of a gateway: what it passes on, and what it answers itself."""

from collections.abc import Sequence
from typing import Final

from headrace.fleet.gateway.endpoints import ENDPOINTS
from headrace.web.asgi import App
from headrace.web.documents import OPENAPI, PAGE, Documents
from headrace.web.endpoint import Endpoint

ABOUT: Final = (
    "One address for many replicas. What is passed on has the fields that the replicas take: those of headrace stand here; "
    "other servers may take fewer."
)


def document_endpoints(passed: App, routes: Sequence[Endpoint]) -> list[Endpoint]:
    """The routes of the documents, which are about `routes` as they are when first asked for, and about what is `passed` on."""

    def described() -> list[Endpoint]:
        # Read when a document is first asked for: a gateway needs none of these types to pass requests on.
        from headrace.web.operations import BY_PATH

        through = [Endpoint("POST", path, passed, BY_PATH[path]) for path in ENDPOINTS]
        return [*through, *(route for route in routes if not _is_file(route))]

    documents = Documents(described, ABOUT)
    return [
        Endpoint("GET", "/openapi.json", documents.openapi(), OPENAPI),
        Endpoint("GET", "/docs", documents.page(), PAGE),
    ]


def _is_file(route: Endpoint) -> bool:
    """It is a part of the dashboard's page, which nobody calls by itself."""
    return route.operation.tag == "dashboard" and not route.path.endswith("/")
