"""TCP ports that stay ours while nobody listens on them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def hold() -> socket.socket:
    """A socket that keeps a port of 127.0.0.1, on which nobody listens, until it is closed.

    It is bound, so that the kernel gives its port to no other; and shared, so that a server which sets
    SO_REUSEADDR or SO_REUSEPORT, as all do, can listen there, end, and come back.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


@contextmanager
def held_port() -> Iterator[int]:
    """A port for a server that cannot choose its own and tell it."""
    with hold() as held:
        port: int = held.getsockname()[1]
        yield port
