"""The last requests that ended, for the inspector: a ring, so that memory stays as it is."""

from collections import deque
from itertools import islice

from msgspec import Struct, structs

from headrace.fleet.gateway.request_meter import Finished
from headrace.fleet.gateway.trip import Trip, Try

#: Requests that are kept.
MAX_KEPT = 500
#: Characters of a name that a client gave.
MAX_NAME = 200


class FinishedRequest(Struct, frozen=True, kw_only=True):
    """One request that has ended, well or not."""

    request_id: str
    time: float
    """`Clock.wall` when it came."""
    key: str
    tenant: str
    priority: str
    endpoint: str
    """Its path."""
    model: str
    """What was asked for, as the rules of the gateway resolved it."""
    answered_by: str = ""
    """The target that answered instead, of a request that fell back."""
    is_stream: bool = False
    status: int = 200
    """HTTP; 499: its client left."""
    result: str
    """In one word, as the metrics have it."""
    error: str = ""
    """The problem's code."""
    is_cached: bool = False
    """Told from the response cache, or shared with another request in flight."""
    tries: tuple[Try, ...] = ()
    queued: float | None = None
    """Seconds in the gateway's queue; None: it never queued."""
    ttft: float | None = None
    """Seconds from its arrival to the first token of its stream, or to its whole answer."""
    itl: float | None = None
    """Mean seconds between two tokens of a stream."""
    latency: float = 0.0
    """Seconds from its arrival to its end."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    """Billionths."""
    saved: int = 0
    """Billionths that it would have cost more without caches."""


def finished_request(finished: Finished) -> FinishedRequest:
    """What is kept of one."""
    row, trip = finished.row, finished.trip or Trip(endpoint="")
    # The first byte of a stream comes before its first token: with the role, or with a comment.
    first = next((t.at + t.ttft for t in trip.tries if t.ttft is not None), row.ttft)
    return FinishedRequest(
        request_id=row.request_id[:MAX_NAME],
        time=row.time,
        key=row.key[:MAX_NAME],
        tenant=row.tenant[:MAX_NAME],
        priority=finished.priority,
        endpoint=trip.endpoint,
        model=row.model[:MAX_NAME],
        answered_by=trip.answered_by[:MAX_NAME],
        is_stream=trip.is_stream,
        status=row.status,
        result=str(finished.result),
        error=trip.error,
        is_cached=trip.is_cached,
        tries=trip.tries,
        queued=finished.queue,
        ttft=first if trip.is_stream else row.ttft,
        itl=finished.pace.tpot if finished.pace is not None else None,
        latency=row.latency,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        cost=row.cost,
        saved=finished.saved_cost + finished.saved_prefix_cost,
    )


def _bounded(finished: Finished) -> Finished:
    """The same, without more of a name than is shown."""
    row = finished.row
    if max(len(row.model), len(row.key), len(row.tenant), len(row.request_id)) <= MAX_NAME:
        return finished
    short = structs.replace(
        row,
        model=row.model[:MAX_NAME],
        key=row.key[:MAX_NAME],
        tenant=row.tenant[:MAX_NAME],
        request_id=row.request_id[:MAX_NAME],
    )
    return structs.replace(finished, row=short)


class RequestPart(Struct, frozen=True, kw_only=True):
    """Some of them, oldest first."""

    end: int
    """What `after` is for the next question."""
    kept: int
    """How many are kept at most."""
    items: list[FinishedRequest]


class FinishedRing:
    """Numbered from 0 since the gateway's start."""

    def __init__(self, length: int = MAX_KEPT) -> None:
        self._length = length
        self._kept: deque[Finished] = deque(maxlen=length)
        self._end = 0

    def add(self, finished: Finished) -> None:
        """It has ended. Most are never looked at, so what is shown of one is made when somebody looks."""
        self._kept.append(_bounded(finished))
        self._end += 1

    def after(self, number: int) -> RequestPart:
        """Those from `number` on, as far as they are there."""
        first = min(max(number, self._end - len(self._kept)), self._end)
        skipped = first - (self._end - len(self._kept))
        items = [finished_request(finished) for finished in islice(self._kept, skipped, None)]
        return RequestPart(end=self._end, kept=self._length, items=items)
