"""Requests whose grammar is being compiled: they come to the scheduler when it is done.

One thread compiles, in the order of arrival, so that steps go on meanwhile. What comes from the server was
tried out there, in a process that can be killed, and compiles in a time that is bounded; a grammar that
does not compile within `MAX_SECONDS` here is refused, and so are all that wait behind it too long.
"""

import logging
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Final, NamedTuple

from headrace.core.errors import GrammarError, HeadraceError, InternalError
from headrace.core.events import FinishReason, TokenEvent
from headrace.core.grammar import Grammar
from headrace.core.request import Request
from headrace.grammar.compiler import CompiledGrammar, GrammarCompiler

log = logging.getLogger("headrace.engine")

#: Seconds that a request waits for its grammar.
MAX_SECONDS: Final = 30.0


class Passed(NamedTuple):
    """A request that waits no more."""

    request: Request
    finish: FinishReason | None = None
    """How it ends, when it cannot run."""
    error: HeadraceError | None = None
    cancelled: tuple[int, ...] = ()
    """Sequences that were cancelled meanwhile."""


class _Job:
    """A grammar on its way through the thread."""

    __slots__ = ("compiled", "error", "grammar", "is_done")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.compiled: CompiledGrammar | None = None
        self.error: HeadraceError | None = None
        self.is_done = False


class _Waiting:
    """A request at the gate."""

    __slots__ = ("cancelled", "is_cancelled", "job", "request", "since")

    def __init__(self, request: Request, job: _Job, since: float) -> None:
        self.request = request
        self.job = job
        self.since = since
        self.is_cancelled = False
        self.cancelled: list[int] = []


class GrammarGate:
    """Not thread-safe but for the thread it starts, which ends with the process.

    False while no request waits at it.
    """

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._waiting: list[_Waiting] = []
        self._held: dict[str, tuple[CompiledGrammar, int]] = {}
        """By request: what the compiler must not forget, and sequences that may still need it."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request: Request, now: float) -> bool:
        """Whether the request may run at once; if not, `take` gives it back later."""
        if request.grammar is None:
            return True
        compiled = self._compiler.find(request.grammar)
        if compiled is not None:
            self._held[request.request_id] = (compiled, request.n)
            return True
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="grammar", daemon=True)
            self._thread.start()
        job = _Job(request.grammar)
        self._waiting.append(_Waiting(request, job, now))
        self._jobs.put(job)
        return False

    def take(self, now: float) -> list[Passed]:
        """Requests that wait no more, in the order of their arrival."""
        verdicts = [(waiting, self._judge(waiting, now)) for waiting in self._waiting]
        self._waiting = [waiting for waiting, passed in verdicts if passed is None]
        return [passed for _, passed in verdicts if passed is not None]

    def cancel(self, request_id: str, index: int | None) -> bool:
        """Whether the request waits here; it, or one of its sequences, ends when `take` is called."""
        for waiting in self._waiting:
            if waiting.request.request_id == request_id:
                if index is None or waiting.request.n == 1:
                    waiting.is_cancelled = True
                else:
                    waiting.cancelled.append(index)
                return True
        return False

    def _judge(self, waiting: _Waiting, now: float) -> Passed | None:
        request, job = waiting.request, waiting.job
        if waiting.is_cancelled:
            return Passed(request, FinishReason.CANCELLED)
        if request.deadline is not None and now >= request.deadline:
            return Passed(request, FinishReason.TIMEOUT)
        if job.is_done:
            if job.compiled is None:
                return Passed(request, FinishReason.ERROR, job.error)
            self._held[request.request_id] = (job.compiled, request.n)
            return Passed(request, cancelled=tuple(waiting.cancelled))
        if now - waiting.since >= MAX_SECONDS:
            late = f"The grammar was not compiled within {MAX_SECONDS:.0f} s."
            return Passed(request, FinishReason.ERROR, GrammarError(late))
        return None

    def clear(self) -> list[Request]:
        """All that waited here; none does any more."""
        requests = [waiting.request for waiting in self._waiting]
        self._waiting = []
        return requests

    def watch(self, events: Iterable[TokenEvent]) -> None:
        """Let go of the grammars of requests that end with these events."""
        if not self._held:
            return
        for event in events:
            if event.finish is None or event.request_id not in self._held:
                continue
            compiled, num_open = self._held.pop(event.request_id)
            if num_open > 1:
                self._held[event.request_id] = (compiled, num_open - 1)

    def close(self) -> None:
        """End the thread when it has nothing to do."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.compiled = self._compiler.compile(job.grammar)
            except HeadraceError as error:
                job.error = error
            except Exception as error:
                # Whatever it is, its request must hear of it, and the thread go on.
                log.exception("A grammar could not be compiled")
                job.error = InternalError(f"A grammar failed: {type(error).__name__}.")
            job.is_done = True
