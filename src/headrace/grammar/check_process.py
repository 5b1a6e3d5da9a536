"""`python -m headrace.grammar.check_process`: tries grammars out, one after another, until stdin ends.

Frames are a length (four bytes, little endian) and msgpack. In: a `Vocabulary`, answered when it has been
read, then one `Grammar` after another, each answered by a `Verdict`. Whoever asks kills this process when
an answer takes too long; memory and processor time are bounded here too, should nobody be left to ask.
"""

import resource
import signal
import sys
from random import Random
from typing import BinaryIO, Final, TypeVar

import msgspec

from headrace.core.clock import Clock, WorkClock
from headrace.core.errors import HeadraceError
from headrace.core.grammar import Grammar
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.vocabulary import Vocabulary

#: Address space; more is a grammar that would hurt the engine.
MAX_BYTES: Final = 4 * 1024**3
#: Processor time of one check: far beyond the time limit of whoever asks.
MAX_CPU_SECONDS: Final = 120
#: Tokens that are tried, and the processor time that one may take: a step of the engine waits for it.
NUM_TRIED: Final = 24
MAX_TOKEN_SECONDS: Final = 0.5

T = TypeVar("T")


class Verdict(msgspec.Struct, frozen=True):
    """What came of one check."""

    fault: str | None = None
    """Why the grammar cannot be used; None when it can."""


def main() -> None:
    """Serve one asker."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # a terminal signals the whole group; we end with stdin
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    vocabulary = _read(source, Vocabulary)
    if vocabulary is None:
        return
    compiler = GrammarCompiler(lambda: (vocabulary, None))
    compiler.warm_up()
    _write(target, Verdict())
    clock = WorkClock()  # a busy machine makes no grammar complex
    while (grammar := _read(source, Grammar)) is not None:
        _bound_cpu()
        _write(target, Verdict(find_fault(compiler, grammar, clock)))


def find_fault(compiler: GrammarCompiler, grammar: Grammar, clock: Clock) -> str | None:
    """Compile the grammar and say a few tokens by chance; why it cannot be used, or None."""
    try:
        state = compiler.compile(grammar).start.deep_copy()
    except HeadraceError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"it cannot be read: {error}"
    chance = Random(0)
    for count in range(NUM_TRIED):
        began = clock.monotonic()
        mask = state.compute_bitmask()
        if clock.monotonic() - began > MAX_TOKEN_SECONDS:
            return "it is too complex: finding the tokens that it allows takes too long"
        token_id = _some_bit(mask, chance)
        if state.is_error() or token_id is None:
            # Later on the model may never get there; then it ends that answer alone.
            return None if count else "it allows no answer, or is too complex"
        if state.is_stopped() or not state.consume_token(token_id):
            return None
    return None


def _some_bit(mask: bytes, chance: Random) -> int | None:
    """The position of a set bit, the first from a place taken by chance."""
    start = chance.randrange(len(mask))
    for place, byte in enumerate(mask[start:] + mask[:start]):
        if byte:
            bit = (byte & -byte).bit_length() - 1
            return (start + place) % len(mask) * 8 + bit
    return None


def _bound_cpu() -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime) + MAX_CPU_SECONDS
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def _read(source: BinaryIO, kind: type[T]) -> T | None:
    size = source.read(4)
    if len(size) < 4:
        return None
    message: T = msgspec.msgpack.decode(source.read(int.from_bytes(size, "little")), type=kind)
    return message


def _write(target: BinaryIO, verdict: Verdict) -> None:
    payload = msgspec.msgpack.encode(verdict)
    target.write(len(payload).to_bytes(4, "little") + payload)
    target.flush()


if __name__ == "__main__":
    main()
