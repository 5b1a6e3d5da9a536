"""The listening socket, and who has the port when we cannot have it."""

import errno
import ipaddress
import socket
from pathlib import Path

from headrace.core.errors import ConfigError

BACKLOG = 2048
_LISTEN = "0A"


def bind(host: str, port: int, *, setting: str = "--port") -> socket.socket:
    """A bound socket, not yet listening. Raises ConfigError with a sentence that helps; it names `setting`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"The address '{host}' cannot be resolved: {error}.") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(_why(error, host, port, setting)) from None
    sock.setblocking(False)
    return sock


def inherit(fd: int, *, setting: str = "--listen-fd") -> socket.socket:
    """The listening socket that whoever started this process has handed on. Raises ConfigError; it names `setting`."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        raise ConfigError(f"{setting} {fd} is no socket.") from None
    is_listening = sock.type == socket.SOCK_STREAM and sock.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    )
    if not is_listening or sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.detach()  # it is somebody else's
        raise ConfigError(f"{setting} {fd} is no listening TCP socket.")
    # Children, such as the engine, must not hold it when this process has ended.
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket, *, is_tls: bool = False) -> str:
    """Where clients of this machine find the socket."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_local(host: str) -> bool:
    """Only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _why(error: OSError, host: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = holder_of(port)
        by = f" by {holder}" if holder else ""
        return f"Port {port} on {host} is in use{by}; choose another one with {setting}."
    if error.errno == errno.EACCES:
        return (
            f"Port {port} may not be used without privileges; choose one above 1023 with {setting}."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"'{host}' is not an address of this machine."
    return f"Listening on {host}:{port} failed: {error}."


def holder_of(port: int) -> str | None:
    """The process that listens on a port, as far as we may see it (Linux)."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {str(link.readlink()) for link in (process / "fd").iterdir()}
            if inodes & links:
                name = (process / "comm").read_text().strip()
                return f"process {process.name} ({name})"
        except OSError:
            continue  # it ended, or it is not ours to look at
    return None


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.append(fields[9])
    return inodes
