"""Listening sockets, and helpful errors where they cannot be opened."""

import errno
import socket
from typing import Any

from geminga.errors import UsageError

BACKLOG = 1024
"""Connections that may wait to be accepted."""
ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before other work. asyncio accepts as many as its backlog, and reports them
later, when they may have taken all descriptors."""

_DESCRIPTORS_KEPT_BACK = 128 + 256
"""File descriptors reserved for the store's files and for web connections; the rest is for peers."""


class PortInUse(UsageError, OSError):
    """Another process listens on the port. The message names the port and what to do."""


def bind(host: str, port: int, what: str) -> socket.socket:
    """Return a bound TCP socket, not yet listening; ``what`` names the setting in errors (`PortInUse`)."""
    wildcard = host in ("", "*", "0.0.0.0", "::")
    try:
        found = socket.getaddrinfo(
            None if wildcard else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise UsageError(
            f"host {host!r} is no address of this machine ({error}); try 127.0.0.1 or 0.0.0.0"
        ) from None
    v6 = [info for info in found if info[0] == socket.AF_INET6]
    is_dual = bool(v6) and wildcard and socket.has_dualstack_ipv6()
    family, *_, address = v6[0] if is_dual else found[0]
    try:
        listener = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
    except OSError as error:
        raise _bind_error(error, host, port, what) from None
    listener.setblocking(False)
    return listener


def _bind_error(error: OSError, host: str, port: int, what: str) -> Exception:
    option = what.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"port {port} is in use by another process (host {host or '0.0.0.0'}); "
            f"stop that process, or choose another port with --{option} (--{option} 0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return UsageError(f"no permission to listen on port {port}; choose a port above 1023 with --{option}")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"host {host!r} is no address of this machine; try 127.0.0.1 or 0.0.0.0")
    return UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}")


def peer_text(address: Any) -> str:
    """Return ``/host:port``, as Pulsar shows peers in stats."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0]).removeprefix("::ffff:")
        return f"/[{host}]:{address[1]}" if ":" in host else f"/{host}:{address[1]}"
    return "/unknown"


def descriptors_free() -> int:
    """Return how many connections the process's limit of file descriptors allows, at least one."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows has no such limit
        return 1 << 30
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    return max(1, limit - min(_DESCRIPTORS_KEPT_BACK, limit // 2))
