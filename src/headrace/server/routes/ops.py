"""For probes, scrapers and gateways. All O(1): none of them waits for the engine or its queue."""

from headrace import __version__
from headrace.api.models import Health, Version
from headrace.config.server import MetricsNames
from headrace.core.stats import LoadReport
from headrace.observe.genai_names import expose_genai
from headrace.observe.llama_names import expose_llama
from headrace.observe.prometheus import CONTENT_TYPE, expose
from headrace.server.replica import Replica
from headrace.web.asgi import App, Receive, Scope, Send, send_body, send_json
from headrace.web.endpoint import Access, Endpoint, Operation

LIVEZ = Operation(
    summary="Does the process live?", tag="operate", response=Health, access=Access.OPEN
)
READYZ = Operation(
    summary="Should requests come here?",
    tag="operate",
    description="503, with the reason, while the model loads, the engine stands, or the queue is full.",
    response=Health,
    access=Access.OPEN,
)
LOAD = Operation(
    summary="Numbers to route by",
    tag="operate",
    description="Fields are only ever added.",
    response=LoadReport,
    access=Access.OPERATOR,
)
METRICS = Operation(
    summary="Metrics for Prometheus",
    tag="operate",
    content_type=CONTENT_TYPE,
    access=Access.OPERATOR,
)
METRICS_VLLM = Operation(
    summary="The same metrics under vLLM's names",
    tag="operate",
    content_type=CONTENT_TYPE,
    access=Access.OPERATOR,
)
METRICS_GENAI = Operation(
    summary="Metrics under the names of OpenTelemetry's conventions for generative AI",
    tag="operate",
    content_type=CONTENT_TYPE,
    access=Access.OPERATOR,
)
METRICS_LLAMA = Operation(
    summary="Metrics under llama.cpp's names",
    tag="operate",
    content_type=CONTENT_TYPE,
    access=Access.OPERATOR,
)
VERSION = Operation(summary="The version of this server", tag="operate", response=Version)


def livez() -> App:
    """200 as long as the event loop turns: restart the process if this fails."""

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, Health(status="ok"))

    return respond


def readyz(replica: Replica) -> App:
    """200 when requests should come here: model loaded, steps progressing, not draining."""

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        reason = replica.unready_reason
        if reason is None:
            await send_json(send, Health(status="ok", state=replica.state))
        else:
            health = Health(status="unready", reason=reason, state=replica.state)
            await send_json(send, health, status=503)

    return respond


def load(replica: Replica) -> App:
    """The numbers that a router decides by; a frozen schema (`core.stats.LoadReport`)."""

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, replica.load())

    return respond


def metrics_pages(replica: Replica) -> list[Endpoint]:
    """The same numbers under everybody's names."""
    return [
        Endpoint("GET", "/metrics", metrics(replica), METRICS),
        Endpoint("GET", "/metrics/vllm", metrics_vllm(replica), METRICS_VLLM),
        Endpoint("GET", "/metrics/genai", metrics_genai(replica), METRICS_GENAI),
        Endpoint("GET", "/metrics/llama.cpp", metrics_llama(replica), METRICS_LLAMA),
    ]


def metrics(replica: Replica) -> App:
    """Prometheus' text, under our names (and vLLM's and llama.cpp's, if so configured)."""
    names = replica.config.metrics_names
    has_llama = names is MetricsNames.ALL
    return _exposing(
        replica, headrace=True, vllm=names is not MetricsNames.HEADRACE, llama=has_llama
    )


def metrics_vllm(replica: Replica) -> App:
    """The same numbers under vLLM's exact names."""
    return _exposing(replica, vllm=True)


def metrics_genai(replica: Replica) -> App:
    """What OpenTelemetry has names for."""

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_body(send, expose_genai(replica.metrics).encode(), content_type=CONTENT_TYPE)

    return respond


def metrics_llama(replica: Replica) -> App:
    """What llama.cpp's dashboards read."""
    return _exposing(replica, llama=True)


def version() -> App:
    """The version of this server."""

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, Version(version=__version__))

    return respond


def _exposing(
    replica: Replica, *, headrace: bool = False, vllm: bool = False, llama: bool = False
) -> App:
    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        replica.system.write(replica.processes())
        if replica.tracer is not None:
            replica.tracer.exporter.write_counts(replica.metrics)
        replica.note_states()
        text = expose(replica.metrics, headrace=headrace, vllm=vllm)
        headers = {}
        if llama:
            text += expose_llama(replica.metrics, replica.load())
            headers = {"Process-Start-Time-Unix": str(replica.created)}
        await send_body(send, text.encode(), content_type=CONTENT_TYPE, headers=headers)

    return respond
