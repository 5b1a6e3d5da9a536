"""Grammars are tried out before they come near the engine: in small processes that can be killed.

Compiling has no bound of its own (a schema of a kilobyte can keep llguidance busy for hours), runs in
machine code that nothing can interrupt, and could take the process with it. So the HTTP process asks
others, gives them a time limit, and remembers what they said.
"""

import asyncio
import contextlib
import hashlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.core.errors import GrammarError, InternalError, OverloadedError
from headrace.core.grammar import Grammar
from headrace.grammar.vocabulary import Vocabulary

#: Verdicts that are remembered.
MAX_REMEMBERED: Final = 2048
#: Seconds for a process to start and read the vocabulary.
START_SECONDS: Final = 60.0


class GrammarChecks:
    """For one model. Lives on one event loop; processes start when they are first needed."""

    def __init__(
        self,
        read_vocabulary: Callable[[], Vocabulary],
        *,
        processes: int,
        timeout: float,
        max_waiting: int,
    ) -> None:
        """`read_vocabulary` is called on a thread; `timeout` bounds each check, in seconds."""
        self._read_vocabulary = read_vocabulary
        self._timeout = timeout
        self._max_pending = processes + max_waiting
        self._turns = asyncio.Semaphore(processes)
        self._idle: list[Process] = []
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[str | None]] = {}
        self._is_closed = False

    async def check(self, grammar: Grammar, field: str) -> None:
        """Raises GrammarError, which names the field, or OverloadedError."""
        key = _key(grammar)
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            fault = self._verdicts[key]
        else:
            fault = await self._share(key, grammar)
        if fault is not None:
            raise GrammarError(f"'{field}' cannot be used: {fault}.", param=field)

    async def close(self) -> None:
        """End all processes; checks that run end with an error."""
        self._is_closed = True
        for task in tuple(self._pending.values()):
            task.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
        for process in self._idle:
            await _end(process)
        self._idle.clear()

    async def _share(self, key: bytes, grammar: Grammar) -> str | None:
        """One check for all who ask the same at the same time, whoever of them leaves."""
        task = self._pending.get(key)
        if task is None:
            if self._is_closed or len(self._pending) >= self._max_pending:
                raise OverloadedError("Too many grammars are waiting to be compiled.")
            task = asyncio.create_task(self._judge(grammar), name="grammar check")
            self._pending[key] = task
            task.add_done_callback(lambda done: self._remember(key, done))
        return await asyncio.shield(task)

    def _remember(self, key: bytes, task: asyncio.Task[str | None]) -> None:
        del self._pending[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._verdicts[key] = task.result()
        while len(self._verdicts) > MAX_REMEMBERED:
            self._verdicts.popitem(last=False)

    async def _judge(self, grammar: Grammar) -> str | None:
        async with self._turns:
            process = self._idle.pop() if self._idle else await self._start()
            try:
                verdict = await asyncio.wait_for(_ask(process, grammar), self._timeout)
            except TimeoutError:
                await _end(process)
                return f"it is too complex: it was not compiled within {self._timeout:g} s"
            except (OSError, EOFError, msgspec.DecodeError):
                await _end(process)
                return "it is too complex: compiling it took too much memory or depth"
            except BaseException:
                await _end(process)
                raise
            self._idle.append(process)
            return verdict

    async def _start(self) -> Process:
        vocabulary = await asyncio.to_thread(self._read_vocabulary)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.grammar.check_process",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
        )
        try:
            await asyncio.wait_for(_ask(process, vocabulary), START_SECONDS)
        except BaseException as error:
            await _end(process)
            if isinstance(error, TimeoutError | OSError | EOFError):
                raise InternalError("The process that tries grammars out did not start.") from error
            raise
        return process


async def _ask(process: Process, question: Vocabulary | Grammar) -> str | None:
    """The fault that the process finds; EOFError when it ends instead."""
    from headrace.grammar.check_process import Verdict

    assert process.stdin is not None
    assert process.stdout is not None
    payload = msgspec.msgpack.encode(question)
    process.stdin.write(len(payload).to_bytes(4, "little") + payload)
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(4), "little")
    return msgspec.msgpack.decode(await process.stdout.readexactly(size), type=Verdict).fault


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()


def _key(grammar: Grammar) -> bytes:
    return hashlib.sha256(f"{grammar.kind.value}\n{grammar.text}".encode()).digest()
