"""How often a request is tried again, and what its client is told in the end."""

import random
from collections import deque
from collections.abc import Mapping
from typing import Final, NoReturn

from headrace.config.fleet.gateway import RetryConfig
from headrace.core.errors import (
    BadGatewayError,
    GatewayTimeoutError,
    HeadraceError,
    OverloadedError,
)
from headrace.fleet.upstream.failure import FailureKind, UpstreamError

#: Seconds over which requests and retries are compared.
WINDOW: Final = 10.0
#: Retries in a window that are always allowed.
ALWAYS: Final = 10
_MAX_BACKOFF: Final = 2.0
_MAX_DOUBLINGS: Final = 30
#: What the last replica did, in words that name nobody.
_LAST: Final[Mapping[FailureKind, str]] = {
    FailureKind.CONNECT: ": the last one could not be reached",
    FailureKind.CUT: ": the last one broke off",
    FailureKind.GARBAGE: ": what the last one sent is no answer",
}


class RetryBudget:
    """Retries of all requests together: a share of the requests, so that a failing fleet is not hit harder."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def note_request(self, now: float) -> None:
        """A request came."""
        self._requests.append(now)
        self._forget(now)

    def has_room(self, now: float) -> bool:
        """Whether one more retry may be made."""
        self._forget(now)
        return len(self._retries) < ALWAYS + self.share * len(self._requests)

    def take(self, now: float) -> bool:
        """Whether one more retry may be made; if so it is counted."""
        if not self.has_room(now):
            return False
        self._retries.append(now)
        return True

    def _forget(self, now: float) -> None:
        for times in (self._requests, self._retries):
            while times and times[0] <= now - WINDOW:
                times.popleft()


class Attempts:
    """One request's tries."""

    def __init__(self, config: RetryConfig, budget: RetryBudget) -> None:
        self._config = config
        self._budget = budget
        self.tried: set[str] = set()
        """Replicas that have failed it; others come first."""
        self.num_failed = 0
        self._num_sent = 0
        self._num_resumed = 0

    def backoff(self) -> float:
        """Seconds to wait before the next one, when it goes to a replica that was tried before."""
        doubled = min(max(0, self.num_failed - 1), _MAX_DOUBLINGS)
        longest = min(_MAX_BACKOFF, self._config.backoff * 2.0**doubled)
        return longest * random.uniform(0.5, 1.0)

    def note_failure(self, failure: UpstreamError, now: float) -> None:
        """Nothing has been sent to the client. Raises what it is told if this was the last try."""
        if self._count(failure):
            self._num_sent += 1
            if self._num_sent >= self._config.attempts or not self._budget.take(now):
                raise final_error(failure)

    def note_break(self, failure: UpstreamError) -> None:
        """The answer broke off in the middle. Raises what ends the stream if it is not gone on with."""
        if self._count(failure):
            self._num_resumed += 1
            if self._num_resumed > self._config.resume_attempts:
                raise final_error(failure)

    def _count(self, failure: UpstreamError) -> bool:
        """Whether it was sent at all. Where nobody took it, the next try is no burden; patience and the time in all bound
        those tries, and replicas that nobody can reach are left out of them.
        """
        self.tried.add(failure.replica_id)
        self.num_failed += 1
        return failure.kind is not FailureKind.CONNECT

    def end(self, failure: UpstreamError, why: str) -> NoReturn:
        """Nothing more can be tried, for the reason of this sentence. Raises what the client is told."""
        raise final_error(failure, why)


def final_error(failure: UpstreamError, why: str = "") -> HeadraceError:
    """What a client is told of a failure that is not mended by another replica, and, in a sentence of its own, `why` it is
    not. Names no replica.
    """
    why = why and f" {why}"
    if failure.kind is FailureKind.OVERLOADED:
        return OverloadedError(
            f"All replicas of this model are busy; try again later.{why}",
            retry_after=failure.retry_after or 1.0,
        )
    if failure.kind in (FailureKind.FIRST_BYTE, FailureKind.STALLED):
        return GatewayTimeoutError(f"The replicas of this model did not answer in time.{why}")
    if failure.kind is FailureKind.MODEL:
        return BadGatewayError(f"The model failed at this request, and says so.{why}")
    last = _LAST.get(failure.kind, "")
    if failure.http_status is not None:
        last = f": the last one with status {failure.http_status}"
    return BadGatewayError(f"The replicas of this model failed to answer{last}.{why}")
