"""`POST /v1/abort`, and the same under SGLang's and vLLM's names."""

from headrace.api.text import Aborted, AbortRequest
from headrace.core.errors import BadRequestError, NotFoundError
from headrace.server.calls import Call, answering
from headrace.server.replica import Replica
from headrace.web.asgi import App
from headrace.web.endpoint import Operation

ABORT = Operation(
    summary="End a request that runs",
    tag="generate",
    description=(
        "By the `id` of its answer or the `x-request-id` it came with; only for the API key that "
        "started it. The request itself ends with status 499, or with an error event in its stream."
    ),
    request=AbortRequest,
    response=Aborted,
    example={"request_id": "chatcmpl-0123456789abcdef01234567"},
    errors=(404,),
)
DIALECT = Operation(
    summary="End requests that run",
    tag="generate",
    description="As `/v1/abort`, but 200 also when nothing of that name runs, as other servers have it.",
    request=AbortRequest,
    response=Aborted,
    example={"rid": "chatcmpl-0123456789abcdef01234567"},
)


def abort(replica: Replica, *, must_exist: bool) -> App:
    """The handler; `must_exist` makes it a 404 when nothing is ended."""

    async def answer(call: Call) -> Aborted:
        wire = call.decode(AbortRequest)
        names = wire.names()
        if not names and not wire.abort_all:
            raise BadRequestError(
                "Say which request is to end: 'request_id' is required.",
                param="request_id",
                code="missing_required_parameter",
            )
        if wire.abort_all:
            ended = replica.open_requests.names(call.owner)
            return Aborted(aborted=ended, num_aborted=replica.open_requests.end_all(call.owner))
        counts = {name: replica.open_requests.end(name, call.owner) for name in names}
        if must_exist and not any(counts.values()):
            raise NotFoundError("No request of that name runs.")
        return Aborted(
            aborted=[name for name, count in counts.items() if count],
            num_aborted=sum(counts.values()),
        )

    return answering(replica, answer)
