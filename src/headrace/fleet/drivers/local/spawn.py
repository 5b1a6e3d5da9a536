"""Starts a server that outlives us, and that does not begin before it is noted.

The child waits at a gate, a shell that reads one line and then becomes the server. Whoever starts it writes its note
first and opens the gate then: if the starter is killed in between, the child reads the end of the pipe and ends. So
there is no moment in which a server runs that nobody knows of.
"""

import fcntl
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from headrace.fleet.drivers.local.output import open_log

#: The descriptor under which the child finds its listening socket.
SOCKET_FD: Final = 3
_GATE: Final = 'read -r go && exec "$@" </dev/null'
_SHELL: Final = ("/bin/sh", "-c", _GATE, "sh")
#: Above everything that is put in place below.
_FIRST_FREE_FD: Final = 16


@contextmanager
def gated(
    command: Sequence[str], environment: Mapping[str, str], sock: socket.socket, log: Path
) -> Iterator[int]:
    """Inside the block the child waits, in a session of its own; its pid is given. It begins when the block ends well,
    and ends when the block fails. Raises OSError.
    """
    with ExitStack() as stack:
        read, write = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, write)
        with ExitStack() as ours:
            ours.callback(os.close, read)
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            ours.callback(os.close, null)
            output = open_log(log)
            ours.callback(os.close, output)
            sources = [_high(fd, ours) for fd in (read, null, output, sock.fileno())]
            pid = os.posix_spawn(
                _SHELL[0],
                [*_SHELL, *command],
                dict(environment),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(sources)
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM),
            )
        yield pid
        os.write(write, b"go\n")


def is_command(found: Sequence[str], command: Sequence[str]) -> bool:
    """A process with this command line is the server, or waits at its gate."""
    return tuple(found) in (tuple(command), (*_SHELL, *command))


def _high(fd: int, stack: ExitStack) -> int:
    """A copy that stands above what the child gets: a process may have started with 0, 1 or 2 closed."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
    stack.callback(os.close, copy)
    return copy
