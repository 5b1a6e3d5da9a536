"""`/`, `/openapi.json` and `/docs` of a gateway: what it passes on, and what it answers itself."""

from collections.abc import Sequence
from typing import Final

from headrace.fleet.gateway.endpoints import ENDPOINTS
from headrace.web.asgi import App, Receive, Scope, Send, send_body
from headrace.web.documents import OPENAPI, PAGE, Documents
from headrace.web.endpoint import Access, Endpoint, Operation

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


def front_endpoint(*, has_operators: bool) -> Endpoint:
    """`/`: where a browser that was given the gateway's address is led, to the dashboard, or to the documents where nobody can
    sign in there. It tells nothing itself; each of the two asks for its own keys.
    """
    # Relative, so that it holds behind a proxy that adds a prefix too. Not for good: the next start may lead elsewhere.
    headers = {"location": "dashboard/" if has_operators else "docs", "cache-control": "no-store"}

    async def lead(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_body(send, b"", status=307, headers=headers)

    summary = "Leads to the dashboard, or to these documents."
    operation = Operation(
        summary=summary, tag="documents", content_type="text/html", access=Access.OPEN
    )
    return Endpoint("GET", "/", lead, operation)


def _is_file(route: Endpoint) -> bool:
    """It is a part of the dashboard's page, which nobody calls by itself."""
    return route.operation.tag == "dashboard" and not route.path.endswith("/")
